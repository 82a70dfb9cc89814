"""Queue jobs: they run in order, one per visitor, and a limited number at the same time."""

from __future__ import annotations

import threading


class Ticket:
    """A job's place in the queue. The job waits, and may then run until `leave` is called."""

    def __init__(self, jobs: JobQueue, visitor: str) -> None:
        self._jobs, self.visitor = jobs, visitor

    @property
    def ahead(self) -> int | None:
        """The number of tickets before this one in the queue; None once this job may run."""
        return self._jobs.ahead(self)

    def leave(self) -> None:
        """Leave the queue, or stop running, so that the next job may run."""
        self._jobs.leave(self)


class JobQueue:
    """A queue in which `count` jobs may run at the same time while the others wait.

    >>> queue = JobQueue(1)
    >>> first, second = queue.enter("Ann"), queue.enter("Ben")
    >>> print(first.ahead, second.ahead)
    None 0
    >>> first.leave()
    >>> print(second.ahead)
    None
    """

    def __init__(self, count: int) -> None:
        self.count = count
        self._lock = threading.Lock()
        self._queue: list[Ticket] = []
        self._running: list[Ticket] = []

    def enter(self, visitor: str) -> Ticket:
        """Return a new ticket at the end of the queue. Its job runs at once if a place is free."""
        ticket = Ticket(self, visitor)
        with self._lock:
            self._queue.append(ticket)
            self._admit()
        return ticket

    def ahead(self, ticket: Ticket) -> int | None:
        """Return the number of tickets before this one in the queue; None once its job may run."""
        with self._lock:
            return self._queue.index(ticket) if ticket in self._queue else None

    def leave(self, ticket: Ticket) -> None:
        """Remove a ticket. If it was removed before, nothing happens."""
        with self._lock:
            for tickets in (self._queue, self._running):
                if ticket in tickets:
                    tickets.remove(ticket)
            self._admit()

    def _admit(self) -> None:
        for ticket in list(self._queue):
            if len(self._running) >= self.count:
                return
            # A visitor's second job waits for the first one, and jobs of other visitors may run
            # before it.
            if all(running.visitor != ticket.visitor for running in self._running):
                self._queue.remove(ticket)
                self._running.append(ticket)
