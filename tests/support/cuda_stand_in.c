/* A stand-in for CUDA's runtime and driver, for tests on a machine without a GPU.

   Two devices with streams and events, in virtual time: a kernel computes nothing and takes as long
   as it is told, a copy copies, an event has the time of its stream. PyTorch's own engine, streams,
   events and allocator run on it as on a GPU. What is asked of it is written to a file, a line each.
   Built as libcuda.so.1 and loaded before CUDA's own runtime. */
#define _GNU_SOURCE
#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICES 2
#define FAIL(code) do { if (failing) return code; } while (0)

typedef struct { int device, id; double end; } Stream; /* id 0: the device's default stream */
typedef struct { int device; double time; } Event;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static __thread int current = 0;
static Stream defaults[DEVICES] = {{0, 0, 0}, {1, 0, 0}};
static int streams = 0, failing = 0, log_to = 0;
static double duration = 0; /* milliseconds of a kernel and of a copy */

void stand_in_log(int file) { log_to = file; } /* 0: no more */
void stand_in_fail(int now) { failing = now; }
void stand_in_duration(double milliseconds) { duration = milliseconds; }

static double host = 0; /* the host's time: it passes only while the host waits */
static void wait_until(double time) {
  pthread_mutex_lock(&lock);
  if (host < time) host = time;
  pthread_mutex_unlock(&lock);
}

static Stream *stream_of(cudaStream_t s) { return s ? (Stream *)s : &defaults[current]; }

/* Something takes its time on a stream. `what`: "kernel", or the kind of a copy. */
static void work(const char *what, size_t bytes, cudaStream_t s) {
  Stream *stream = stream_of(s);
  pthread_mutex_lock(&lock);
  stream->end = (stream->end > host ? stream->end : host) + duration;
  pthread_mutex_unlock(&lock);
  if (log_to) dprintf(log_to, "%s %zu %d %d\n", what, bytes, stream->device, stream->id);
}

/* Devices */
cudaError_t cudaGetDeviceCount(int *n) { *n = DEVICES; return 0; }
cudaError_t cudaGetDevice(int *d) { *d = current; return 0; }
cudaError_t cudaSetDevice(int d) { current = d; return 0; }
cudaError_t cudaDriverGetVersion(int *v) { *v = 13000; return 0; }
cudaError_t cudaRuntimeGetVersion(int *v) { *v = 13000; return 0; }
cudaError_t cudaDeviceSynchronize(void) { FAIL(cudaErrorAssert); return 0; }
cudaError_t cudaDeviceCanAccessPeer(int *can, int a, int b) { *can = 0; return 0; }
cudaError_t cudaDeviceGetStreamPriorityRange(int *low, int *high) { *low = 0; *high = -5; return 0; }
cudaError_t cudaDeviceGetPCIBusId(char *id, int n, int d) { snprintf(id, n, "0000:0%d:00.0", d); return 0; }
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int d) {
  memset(p, 0, sizeof *p);
  strcpy(p->name, "stand-in");
  p->major = 9;
  p->multiProcessorCount = 132;
  p->maxThreadsPerMultiProcessor = 2048;
  p->maxThreadsPerBlock = 1024;
  p->warpSize = 32;
  p->totalGlobalMem = 8ull << 30;
  p->sharedMemPerBlock = 49152;
  p->sharedMemPerBlockOptin = p->sharedMemPerMultiprocessor = 232448;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  for (int i = 0; i < 3; i++) { p->maxGridSize[i] = i ? 65535 : 2147483647; p->maxThreadsDim[i] = 1024; }
  return 0;
}
cudaError_t cudaDeviceGetAttribute(int *v, enum cudaDeviceAttr a, int d) {
  *v = a == cudaDevAttrMultiProcessorCount           ? 132
       : a == cudaDevAttrMaxThreadsPerMultiProcessor ? 2048
       : a == cudaDevAttrComputeCapabilityMajor      ? 9
                                                     : 0;
  return 0;
}

/* Memory */
cudaError_t cudaMemGetInfo(size_t *left, size_t *all) { *left = 7ull << 30; *all = 8ull << 30; return 0; }
static struct { char *start, *end; int device; } blocks[4096];
static int count = 0;
static int device_of(const void *p) {
  for (int i = count; i-- > 0;)
    if ((char *)p >= blocks[i].start && (char *)p < blocks[i].end) return blocks[i].device;
  return -1;
}
cudaError_t cudaMalloc(void **p, size_t n) {
  *p = calloc(1, n + 512);
  int i = __sync_fetch_and_add(&count, 1) % 4096;
  blocks[i].start = *p;
  blocks[i].end = blocks[i].start + n;
  blocks[i].device = current;
  return 0;
}
cudaError_t cudaFree(void *p) { free(p); return 0; }
cudaError_t cudaHostAlloc(void **p, size_t n, unsigned flags) { *p = calloc(1, n + 64); return 0; }
cudaError_t cudaFreeHost(void *p) { free(p); return 0; }
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p) {
  memset(a, 0, sizeof *a);
  a->type = cudaMemoryTypeUnregistered;
  return 0;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t n, enum cudaMemcpyKind kind, cudaStream_t s) {
  static const char *kinds[] = {"HtoH", "HtoD", "DtoH", "within", "any"};
  FAIL(cudaErrorAssert);
  memmove(to, from, n);
  int between = kind == cudaMemcpyDeviceToDevice && device_of(to) != device_of(from);
  work(between ? "DtoD" : kinds[kind], n, s);
  return 0;
}
cudaError_t cudaMemcpy(void *to, const void *from, size_t n, enum cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, n, kind, 0);
}
cudaError_t cudaMemcpyPeerAsync(void *to, int a, const void *from, int b, size_t n, cudaStream_t s) {
  memmove(to, from, n);
  work("DtoD", n, s);
  return 0;
}
cudaError_t cudaMemset(void *p, int v, size_t n) { memset(p, v, n); return 0; }
cudaError_t cudaMemsetAsync(void *p, int v, size_t n, cudaStream_t s) { memset(p, v, n); work("kernel", n, s); return 0; }

/* Streams */
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int priority) {
  Stream *made = calloc(1, sizeof *made);
  made->device = current;
  made->id = __sync_add_and_fetch(&streams, 1);
  *s = (cudaStream_t)made;
  return 0;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags) { return cudaStreamCreateWithPriority(s, flags, 0); }
cudaError_t cudaStreamDestroy(cudaStream_t s) { return 0; }
cudaError_t cudaStreamGetPriority(cudaStream_t s, int *p) { *p = 0; return 0; }
cudaError_t cudaStreamQuery(cudaStream_t s) { return stream_of(s)->end <= host ? 0 : cudaErrorNotReady; }
cudaError_t cudaStreamSynchronize(cudaStream_t s) { FAIL(cudaErrorAssert); wait_until(stream_of(s)->end); return 0; }
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags) {
  Stream *stream = stream_of(s);
  Event *event = (Event *)e;
  pthread_mutex_lock(&lock);
  if (stream->end < event->time) stream->end = event->time;
  pthread_mutex_unlock(&lock);
  return 0;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *c) { *c = 0; return 0; }
cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *m) { return 0; }
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t s, enum cudaStreamCaptureStatus *c, unsigned long long *id,
                                     cudaGraph_t *g, const cudaGraphNode_t **d, const cudaGraphEdgeData **e, size_t *n) {
  *c = 0;
  return 0;
}

/* Events */
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags) {
  Event *made = calloc(1, sizeof *made);
  made->device = current;
  *e = (cudaEvent_t)made;
  return 0;
}
cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return 0; }
cudaError_t cudaEventRecordWithFlags(cudaEvent_t e, cudaStream_t s, unsigned flags) {
  Event *event = (Event *)e;
  Stream *stream = stream_of(s);
  FAIL(cudaErrorAssert);
  if (stream->device != event->device) return cudaErrorInvalidResourceHandle;
  event->time = stream->end > host ? stream->end : host;
  return 0;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) { return cudaEventRecordWithFlags(e, s, 0); }
cudaError_t cudaEventQuery(cudaEvent_t e) { FAIL(cudaErrorAssert); return ((Event *)e)->time <= host ? 0 : cudaErrorNotReady; }
cudaError_t cudaEventSynchronize(cudaEvent_t e) { FAIL(cudaErrorAssert); wait_until(((Event *)e)->time); return 0; }
cudaError_t cudaEventElapsedTime(float *milliseconds, cudaEvent_t a, cudaEvent_t b) {
  if (((Event *)a)->device != ((Event *)b)->device) return cudaErrorInvalidResourceHandle;
  *milliseconds = ((Event *)b)->time - ((Event *)a)->time;
  return 0;
}

/* Kernels */
static __thread struct { dim3 grid, block; size_t shared; void *stream; } call;
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void *stream) {
  call.grid = grid;
  call.block = block;
  call.shared = shared;
  call.stream = stream;
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3 *grid, dim3 *block, size_t *shared, void *stream) {
  *grid = call.grid;
  *block = call.block;
  *shared = call.shared;
  *(void **)stream = call.stream;
  return 0;
}
cudaError_t cudaLaunchKernel(const void *f, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) {
  FAIL(cudaErrorAssert);
  work("kernel", 0, s);
  return 0;
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *c, const void *f, void **a) { work("kernel", 0, c->stream); return 0; }
cudaError_t __cudaGetKernel(cudaKernel_t *k, const void *f) { *k = (cudaKernel_t)f; return 0; }
cudaError_t __cudaLaunchKernel(cudaKernel_t k, dim3 g, dim3 b, void **a, size_t m, cudaStream_t s) { return cudaLaunchKernel(k, g, b, a, m, s); }
cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *a, const void *f) {
  memset(a, 0, sizeof *a);
  a->maxThreadsPerBlock = 1024;
  a->numRegs = 32;
  a->binaryVersion = a->ptxVersion = 90;
  return 0;
}
cudaError_t cudaFuncSetAttribute(const void *f, enum cudaFuncAttribute a, int v) { return 0; }
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *n, const void *f, int b, size_t m, unsigned flags) { *n = 2; return 0; }

/* Errors */
cudaError_t cudaGetLastError(void) { return failing ? cudaErrorAssert : 0; }
cudaError_t cudaPeekAtLastError(void) { return failing ? cudaErrorAssert : 0; }
const char *cudaGetErrorString(cudaError_t e) { return e == cudaErrorAssert ? "device-side assert triggered" : "stand-in"; }
const char *cudaGetErrorName(cudaError_t e) { return "cudaError"; }

/* The driver: what PyTorch looks up in it by name does nothing, and says that it has. */
static int nothing(void) { return 0; }
int cuInit(unsigned flags) { return 0; }
int cuCtxGetCurrent(void **context) { *context = 0; return 0; }
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = 1; return 0; }
static void *driver(const char *name) {
  return strcmp(name, "cuDevicePrimaryCtxGetState") ? (void *)nothing : (void *)cuDevicePrimaryCtxGetState;
}
int cuGetProcAddress_v2(const char *name, void **p, int v, unsigned long long f, void *s) { *p = driver(name); return 0; }
int cuGetProcAddress(const char *name, void **p, int v, unsigned long long f) { *p = driver(name); return 0; }
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **p, unsigned v, unsigned long long f,
                                             enum cudaDriverEntryPointQueryResult *result) {
  *p = driver(name);
  if (result) *result = 0;
  return 0;
}
