"""Train a small anchor-free detector with a task-aligned matcher."""

import torch
from torch import nn
from torch.nn import functional as F

torch.manual_seed(0)
SIZE, STRIDE = 32, 4
shift = torch.arange(STRIDE // 2, SIZE, STRIDE).float()
anchor_h, anchor_w = torch.meshgrid(shift, shift, indexing="ij")
anchor_grid = torch.stack([anchor_w.flatten(), anchor_h.flatten()], dim=-1)


def calculate_iou(bbox1, bbox2):
    bbox1, bbox2 = bbox1.unsqueeze(2), bbox2.unsqueeze(1)
    low = torch.maximum(bbox1[..., :2], bbox2[..., :2])
    high = torch.minimum(bbox1[..., 2:], bbox2[..., 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area1 = (bbox1[..., 2:] - bbox1[..., :2]).prod(-1)
    area2 = (bbox2[..., 2:] - bbox2[..., :2]).prod(-1)
    return inter / (area1 + area2 - inter + 1e-7)


class BoxMatcher:
    def __init__(self, class_num=2, topk=10):
        self.class_num = class_num
        self.topk = topk

    def get_valid_matrix(self, target_bbox):
        x_min, y_min, x_max, y_max = target_bbox[:, :, None].unbind(3)
        x, y = anchor_grid[None, None].unbind(3)
        return (x > x_min) & (x < x_max) & (y > y_min) & (y < y_max)

    def get_cls_matrix(self, predict_cls, target_cls):
        predict_cls = predict_cls.transpose(1, 2)
        return torch.gather(predict_cls, 1, target_cls.expand(-1, -1, predict_cls.size(2)))

    def filter_topk(self, target_matrix):
        values, indices = target_matrix.topk(self.topk, dim=-1)
        topk_targets = torch.zeros_like(target_matrix).scatter_(-1, indices, values)
        return topk_targets, topk_targets > 0

    def filter_duplicates(self, target_matrix, topk_mask):
        duplicates = (topk_mask.sum(1, keepdim=True) > 1).repeat([1, topk_mask.size(1), 1])
        max_idx = F.one_hot(target_matrix.argmax(1), topk_mask.size(1)).permute(0, 2, 1)
        topk_mask = torch.where(duplicates, max_idx, topk_mask)
        return topk_mask.argmax(dim=1)[..., None], topk_mask.sum(1) > 0, topk_mask

    @torch.no_grad()
    def __call__(self, target, predict_cls, predict_bbox):
        target_cls, target_bbox = target[..., :1].long(), target[..., 1:]
        grid_mask = self.get_valid_matrix(target_bbox)
        iou_mat = calculate_iou(target_bbox, predict_bbox)
        cls_mat = self.get_cls_matrix(predict_cls.sigmoid(), target_cls)
        target_matrix = grid_mask * (iou_mat**3) * (cls_mat**0.5)
        topk_targets, topk_mask = self.filter_topk(target_matrix)
        unique_indices, valid_mask, topk_mask = self.filter_duplicates(iou_mat, topk_mask)
        outside = (topk_mask.bool() & ~grid_mask).sum().item()
        align_bbox = torch.gather(target_bbox, 1, unique_indices.repeat(1, 1, 4))
        align_cls = F.one_hot(torch.gather(target_cls, 1, unique_indices).squeeze(-1), self.class_num)
        return align_cls * valid_mask[..., None], align_bbox, valid_mask, outside


class Detector(nn.Module):
    def __init__(self, channels=16, class_num=2):
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(class_num, channels, 3, stride=2, padding=1), nn.SiLU(), nn.Conv2d(channels, 32, 5, stride=2, padding=2), nn.SiLU()
        )
        self.head = nn.Conv2d(32, class_num + 4, 3, padding=1)

    def forward(self, images):
        out = self.head(self.backbone(images)).flatten(2).transpose(1, 2)
        ltrb = F.softplus(out[..., -4:] + 2) * STRIDE
        return out[..., :-4], torch.cat([anchor_grid - ltrb[..., :2], anchor_grid + ltrb[..., 2:]], dim=-1)


def make_batch(n=8, boxes=7):
    images, targets = 0.1 * torch.randn(n, 2, SIZE, SIZE), torch.zeros(n, boxes, 5)
    for i in range(n):
        for k in range(boxes):
            (x, y), (w, h), c = torch.randint(4, 16, (2,)), torch.randint(5, 16, (2,)), int(torch.randint(0, 2, ()))
            images[i, c, y : y + h, x : x + w] += 1
            targets[i, k] = torch.tensor([c, x, y, x + w, y + h])
    return images, targets


model, matcher = Detector(), BoxMatcher()
optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
for step in range(30):
    images, targets = make_batch()
    predict_cls, predict_bbox = model(images)
    align_cls, align_bbox, valid_mask, outside = matcher(targets, predict_cls, predict_bbox)
    loss_cls = F.binary_cross_entropy_with_logits(predict_cls, align_cls.float())
    loss_box = F.smooth_l1_loss(predict_bbox[valid_mask], align_bbox[valid_mask])
    loss = loss_cls + 0.5 * loss_box
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 5 == 0 or step == 29:
        print(f"step {step}: cls {loss_cls.item():.4f}, box {loss_box.item():.4f}, {outside} of {valid_mask.sum().item()} anchors outside their box")
