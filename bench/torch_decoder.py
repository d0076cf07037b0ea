#!/usr/bin/env python3
"""A training step of a Llama-like decoder in PyTorch, as its users write it, for cuda_peers.py and cpu_peers.py.

usage: torch_decoder.py MODEL BATCH SEQ MODE [--device cuda] [--threads N] [--steps 10]
MODEL  a name of SHAPES below, the same as snug's preset
MODE   words joined by +:
         eager | compile   without or with torch.compile
         chunked           logits by chunks of tokens, their gradients computed in the forward pass
         bf16              weights, gradients and states in bf16; otherwise fp32 with autocast to bf16
         lora              rank 16 on all linear layers of the blocks, over frozen weights in bf16
         recompute         each block is recomputed in backward
AdamW, gradients clipped at 1, random tokens.  Prints one JSON line: tokens per second of the median step,
milliseconds, GiB of device memory in use (CPU: peak resident bytes).
"""
import argparse
import contextlib
import json
import math
import resource
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

# layers, width, heads, kv heads, width of a head, inner width, vocabulary, theta, eps, tied, q/k/v biases, q/k norms
SHAPES = {
    "smollm2-135m": (30, 576, 9, 3, 64, 1536, 49152, 1e5, 1e-5, True, False, False),
    "llama-3.2-1b": (16, 2048, 32, 8, 64, 8192, 128256, 5e5, 1e-5, True, False, False),
    "llama-3.1-8b": (32, 4096, 32, 8, 128, 14336, 128256, 5e5, 1e-5, False, False, False),
    "qwen2.5-0.5b": (24, 896, 14, 2, 64, 4864, 151936, 1e6, 1e-6, True, True, False),
    "qwen2.5-1.5b": (28, 1536, 12, 2, 128, 8960, 151936, 1e6, 1e-6, True, True, False),
    "qwen2.5-7b": (28, 3584, 28, 4, 128, 18944, 152064, 1e6, 1e-6, False, True, False),
    "qwen3-0.6b": (28, 1024, 16, 8, 128, 3072, 151936, 1e6, 1e-6, True, False, True),
    "qwen3-1.7b": (28, 2048, 16, 8, 128, 6144, 151936, 1e6, 1e-6, True, False, True),
}
CHUNKS = 8


class Norm(nn.Module):
    def __init__(self, width, eps):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):  # or autocast would keep fp32 copies
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)


class Adapter(nn.Module):
    """A frozen linear layer and a trained product of rank 16."""

    def __init__(self, base, rank=16):
        super().__init__()
        n_out, n_in = base.weight.shape
        self.base = base
        self.a = nn.Parameter(torch.randn(rank, n_in, device=base.weight.device) / math.sqrt(n_in))
        self.b = nn.Parameter(torch.zeros(n_out, rank, device=base.weight.device))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a), self.b)


def rotate(x, cos, sin):
    first, second = x.chunk(2, -1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


class Block(nn.Module):
    def __init__(self, shape):
        super().__init__()
        _, width, self.heads, self.kv_heads, self.depth, inner, _, _, eps, _, bias, qk_norm = shape
        self.norm_1, self.norm_2 = Norm(width, eps), Norm(width, eps)
        self.q = nn.Linear(width, self.heads * self.depth, bias)
        self.k = nn.Linear(width, self.kv_heads * self.depth, bias)
        self.v = nn.Linear(width, self.kv_heads * self.depth, bias)
        self.o = nn.Linear(self.heads * self.depth, width, False)
        self.q_norm = Norm(self.depth, eps) if qk_norm else nn.Identity()
        self.k_norm = Norm(self.depth, eps) if qk_norm else nn.Identity()
        self.gate, self.up = nn.Linear(width, inner, False), nn.Linear(width, inner, False)
        self.down = nn.Linear(inner, width, False)

    def attend(self, x, cos, sin):
        batch, length, _ = x.shape
        q = self.q_norm(self.q(x).view(batch, length, self.heads, self.depth))
        k = self.k_norm(self.k(x).view(batch, length, self.kv_heads, self.depth))
        v = self.v(x).view(batch, length, self.kv_heads, self.depth).transpose(1, 2)
        cos, sin = cos[:, None].to(q.dtype), sin[:, None].to(q.dtype)
        q, k = rotate(q, cos, sin).transpose(1, 2), rotate(k, cos, sin).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=self.heads != self.kv_heads)
        return self.o(y.transpose(1, 2).reshape(batch, length, -1))

    def forward(self, x, cos, sin):
        x = x + self.attend(self.norm_1(x), cos, sin)
        y = self.norm_2(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ChunkedLoss(torch.autograd.Function):
    """LM head and cross-entropy by chunks of tokens.  The gradients are computed with the loss, so that the logits of
    one chunk at a time are in memory."""

    @staticmethod
    def forward(ctx, hidden, weight, targets):
        with torch.autocast(hidden.device.type, enabled=False):
            narrow, share = weight.to(hidden.dtype), 1.0 / targets.numel()
            loss = torch.zeros((), device=hidden.device)
            dhidden = torch.empty_like(hidden)
            dweight = torch.zeros_like(narrow) if weight.requires_grad else None
            classes = torch.arange(weight.shape[0], device=hidden.device)
            for h, t, d in zip(hidden.chunk(CHUNKS), targets.chunk(CHUNKS), dhidden.chunk(CHUNKS)):
                logits = (h @ narrow.t()).float()
                lse = torch.logsumexp(logits, -1, keepdim=True)
                loss = loss + (lse - logits.gather(1, t[:, None])).sum() * share
                slope = (((logits - lse).exp() - (classes == t[:, None]).float()) * share).to(h.dtype)
                d.copy_(slope @ narrow)
                if dweight is not None:
                    dweight.addmm_(slope.t(), h)
        ctx.save_for_backward(dhidden, dweight)
        ctx.type = weight.dtype
        return loss

    @staticmethod
    def backward(ctx, dloss):
        dhidden, dweight = ctx.saved_tensors
        return dhidden * dloss.to(dhidden.dtype), None if dweight is None else (dweight * dloss).to(ctx.type), None


class Decoder(nn.Module):
    def __init__(self, shape, length, words):
        super().__init__()
        layers, width, depth, vocabulary, theta, eps, tied = shape[0], shape[1], shape[4], *shape[6:10]
        self.chunked, self.recompute = "chunked" in words, "recompute" in words
        self.tokens = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(layers))
        self.norm = Norm(width, eps)
        self.head = None if tied else nn.Linear(width, vocabulary, False)
        angles = torch.arange(length)[:, None] * theta ** (-torch.arange(0, depth, 2) / depth)
        self.register_buffer("cos", angles.cos().float(), False)
        self.register_buffer("sin", angles.sin().float(), False)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, targets):
        x = self.tokens(ids)
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.bfloat16)  # the residual stream is bf16, as in snug
        for block in self.blocks:
            x = (checkpoint(block, x, self.cos, self.sin, use_reentrant=False) if self.recompute
                 else block(x, self.cos, self.sin))
        hidden, targets = self.norm(x).flatten(0, 1), targets.flatten()
        weight = (self.tokens if self.head is None else self.head).weight
        if self.chunked:
            return ChunkedLoss.apply(hidden, weight, targets)
        return F.cross_entropy(F.linear(hidden, weight).float(), targets)


def add_adapters(model):
    model.requires_grad_(False)
    for block in model.blocks:
        for name, layer in list(block.named_children()):
            if isinstance(layer, nn.Linear):
                setattr(block, name, Adapter(layer))


def build(a, words):
    narrow = torch.bfloat16 if {"bf16", "lora"} & words else torch.float32
    torch.set_default_dtype(narrow)
    with torch.device(a.device):
        model = Decoder(SHAPES[a.model], a.seq, words)
    torch.set_default_dtype(torch.float32)
    if "lora" in words:
        add_adapters(model)
    return model


def attention_kernels(device):
    """On a GPU cuDNN's attention comes first, then FlashAttention."""
    if device == "cpu":
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel
    return sdpa_kernel([SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION,
                        SDPBackend.MATH], set_priority=True)


def device_gib():
    free, total = torch.cuda.mem_get_info()
    return (total - free) / 2**30


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("model", choices=SHAPES)
    p.add_argument("batch", type=int)
    p.add_argument("seq", type=int)
    p.add_argument("mode")
    for name, kind, value in (("device", str, "cuda"), ("threads", int, 0), ("steps", int, 10)):
        p.add_argument("--" + name, type=kind, default=value)
    a = p.parse_args()
    words, is_gpu = set(a.mode.split("+")), a.device == "cuda"
    unknown = words - {"eager", "compile", "chunked", "bf16", "lora", "recompute"}
    if unknown:
        p.error(f"mode: unknown word {sorted(unknown)[0]}")
    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high")
    if a.threads:
        torch.set_num_threads(a.threads)
    model = build(a, words)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    loss_of = torch.compile(model) if "compile" in words else model
    vocabulary = SHAPES[a.model][6]

    def step():
        ids, targets = torch.randint(0, vocabulary, (2, a.batch, a.seq), device=a.device)
        with attention_kernels(a.device), torch.autocast(a.device, torch.bfloat16, enabled="bf16" not in words):
            loss = loss_of(ids, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if is_gpu:
            torch.cuda.synchronize()

    found = {"peer": "torch " + torch.__version__}
    try:
        for _ in range(4 if is_gpu else 1):
            step()
        times = []
        for _ in range(a.steps):
            begin = time.perf_counter()
            step()
            times.append(time.perf_counter() - begin)
        median = sorted(times)[len(times) // 2]
        rate = a.batch * a.seq / median
        found |= {"tok_s": rate, "per_s": rate, "ms": median * 1e3}
        if is_gpu:
            found["device_gib"] = device_gib()
    except torch.OutOfMemoryError:
        found["error"] = "out of memory"
    found["peak_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps(found))


if __name__ == "__main__":
    main()
