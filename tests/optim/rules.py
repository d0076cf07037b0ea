"""rules.py -- every optimizer as RULES.md beside this file states it, for oracle.py.

Written from the rules, independently of snug's code and as plainly as could be: whole tensors, no
blocks but those of the rule, nothing in place.  PyTorch's own optimizer is used where its rule is
the one meant: SGD, Adadelta, Adam, AMSGrad, AdamW, and with eps-outside=1 Adagrad and RMSprop.

A rule for one tensor is update(s, name, w, g, o): states, the tensor's name, weights, clipped
gradient, options (lr, decay, t, n_steps and what the recipe's `opt` says); it gives what is
subtracted.
"""
import math
from types import SimpleNamespace

import numpy as np
import torch


# ---- what a rule is given ------------------------------------------------------------------------


class State(dict):
    """The states of one tensor by name; one that was never set is zero."""

    def __init__(self, w):
        super().__init__()
        self.zero = torch.zeros_like(w)

    def __missing__(self, key):
        return self.zero


def is_table(name):
    return name in ("wte.weight", "wpe.weight")


def is_hidden_matrix(name, w):
    return w.dim() == 2 and not is_table(name)


class PerTensor:
    """A rule for one tensor: update(state, name, w, g, o) gives what is subtracted from w."""

    def __init__(self, update, w):
        self.update = update
        self.states = {name: State(value) for name, value in w.items()}

    def step(self, w, g, o):
        for name in w:
            here = SimpleNamespace(**vars(o), decay=o.weight_decay if w[name].dim() >= 2 else 0.0)
            w[name].sub_(self.update(self.states[name], name, w[name], g[name], here))

    def kept(self):
        """Of these states the test compares those that evaluation uses."""
        return {}


def per_tensor(update):
    return lambda w, case: PerTensor(update, w)


class Torch:
    """One of PyTorch's own."""

    def __init__(self, make, w, case):
        decay = case.recipe["weight-decay"]
        groups = [{"params": [p for p in w.values() if p.dim() >= 2], "weight_decay": decay},
                  {"params": [p for p in w.values() if p.dim() < 2], "weight_decay": 0.0}]
        self.optimizer = make(groups, case.recipe["lr"], case.opt)

    def step(self, w, g, o):
        for name in w:
            w[name].grad = g[name]
        self.optimizer.step()

    def kept(self):
        return {}


def from_torch(make):
    return lambda w, case: Torch(make, w, case)


def torch_adam(kind, **more):
    return from_torch(lambda groups, lr, opt: kind(
        groups, lr=lr, betas=(opt["beta1"], opt["beta2"]), eps=opt["eps"], **more))


def torch_sgd(nesterov):
    return from_torch(lambda groups, lr, opt: torch.optim.SGD(
        groups, lr=lr, momentum=opt.get("mu", 0.0), nesterov=nesterov))


TORCH_ADADELTA = from_torch(lambda groups, lr, opt: torch.optim.Adadelta(
    groups, lr=lr, rho=opt["rho"], eps=opt["eps"]))
TORCH_ADAGRAD = from_torch(lambda groups, lr, opt: torch.optim.Adagrad(
    groups, lr=lr, eps=opt["eps"]))
TORCH_RMSPROP = from_torch(lambda groups, lr, opt: torch.optim.RMSprop(
    groups, lr=lr, alpha=opt["gamma"], eps=opt["eps"]))


# ---- one line each -------------------------------------------------------------------------------


def adagrad(s, name, w, g, o):
    g = g + o.decay * w
    s["v"] = s["v"] + g ** 2
    return o.lr * g / torch.sqrt(s["v"] + o.eps)  # torch.optim.Adagrad: sqrt(v) + eps


def rmsprop(s, name, w, g, o):
    g = g + o.decay * w
    s["v"] = o.gamma * s["v"] + (1 - o.gamma) * g ** 2
    return o.lr * g / torch.sqrt(s["v"] + o.eps)  # torch.optim.RMSprop: sqrt(v) + eps


def lion(s, name, w, g, o):
    u = torch.sign(o.beta1 * s["m"] + (1 - o.beta1) * g)
    s["m"] = o.beta2 * s["m"] + (1 - o.beta2) * g
    return o.lr * (u + o.decay * w)


# ---- the family of Adam --------------------------------------------------------------------------


def moments(s, g, beta1, beta2):
    s["m"] = beta1 * s["m"] + (1 - beta1) * g
    s["v"] = beta2 * s["v"] + (1 - beta2) * g ** 2


def nesterov_mean(s, g, beta1, t):
    """The mean that m will be if this gradient comes once more, corrected."""
    return (beta1 * s["m"] + (1 - beta1) * g) / (1 - beta1 ** t)


def adam_direction(s, g, o):
    moments(s, g, o.beta1, o.beta2)
    return s["m"] / (1 - o.beta1 ** o.t) / (torch.sqrt(s["v"] / (1 - o.beta2 ** o.t)) + o.eps)


def nadam_direction(s, g, o, power=2.0):
    moments(s, g, o.beta1, o.beta2)
    root = (s["v"] / (1 - o.beta2 ** o.t)) ** (1 / power)
    return nesterov_mean(s, g, o.beta1, o.t) / (root + o.eps)


def adamw(s, name, w, g, o):
    return o.lr * (adam_direction(s, g, o) + o.decay * w)


def nadamw(s, name, w, g, o):
    return o.lr * (nadam_direction(s, g, o) + o.decay * w)


def nadamp(s, name, w, g, o):
    return o.lr * (nadam_direction(s, g, o, o.p) + o.decay * w)


def generalized_adam(s, name, w, g, o):
    if o.precondition:
        u = (nadam_direction if o.nesterov else adam_direction)(s, g, o)
    else:
        s["m"] = o.beta1 * s["m"] + g
        u = g + o.beta1 * s["m"] if o.nesterov else s["m"]
    return o.lr * (u + o.decay * w)


def cyclic_rate(o):
    cycle = o.n_steps / o.cycles
    for phase in range(int(o.cycles)):
        at = o.t - phase * cycle
        if at <= o.warmup:
            return o.lr_min + (o.lr - o.lr_min) * at / o.warmup
        if at <= cycle:
            down = math.cos(math.pi * (at - o.warmup) / (cycle - o.warmup))
            return o.lr_min + (o.lr - o.lr_min) * 0.5 * (1 + down)
    return o.lr_min


def cyclic(s, name, w, g, o):
    o.lr = cyclic_rate(o)
    return nadamw(s, name, w, g, o)


class Averaged(PerTensor):
    """lawa-queue and lawa-ema: nadamw, and copies of the weights now and then."""

    def __init__(self, w, case):
        super().__init__(nadamw, w)
        self.queue, self.ema, self.pushes = {}, {}, 0

    def step(self, w, g, o):
        super().step(w, g, o)
        first, interval = math.ceil(o.start * o.n_steps), math.ceil(o.every * o.n_steps)
        since = o.t - 1 - first
        if since < 0 or since % max(1, interval) != 0:
            return
        for name in w:
            copy = w[name].clone()
            if "k" in vars(o):
                self.queue["copy%d.%s" % (self.pushes % int(o.k), name)] = copy
            else:
                key = "ema." + name
                old = self.ema.get(key, copy)
                self.ema[key] = o.beta * old + (1 - o.beta) * copy
        self.pushes += 1

    def kept(self):
        return {**self.queue, **self.ema}


# ---- without a schedule --------------------------------------------------------------------------


class ScheduleFree:
    """The weights are y, where gradients are taken; x, where the model is used, follows from y
    and z."""

    def __init__(self, w, case):
        self.z = {name: value.clone() for name, value in w.items()}
        self.x = {name: value.clone() for name, value in w.items()}
        self.states = {name: State(value) for name, value in w.items()}
        self.weight_sum = 0.0

    def average(self, w, weight, beta1):
        self.weight_sum += weight
        c = weight / self.weight_sum
        for name in w:
            self.x[name] = (1 - c) * self.x[name] + c * self.z[name]
            w[name].copy_(beta1 * self.x[name] + (1 - beta1) * self.z[name])

    def kept(self):
        return {"z." + name: value for name, value in self.z.items()}


class ScheduleFreeAdamW(ScheduleFree):
    lr_max = 0.0

    def step(self, w, g, o):
        lr = o.lr * min(1.0, o.t / o.warmup) if o.warmup else o.lr
        self.lr_max = max(self.lr_max, lr)
        a = lr * math.sqrt(1 - o.beta2 ** o.t)
        for name, s in self.states.items():
            decay = o.weight_decay if w[name].dim() >= 2 else 0.0
            s["v"] = o.beta2 * s["v"] + (1 - o.beta2) * g[name] ** 2
            u = g[name] / (torch.sqrt(s["v"]) + o.eps)
            self.z[name] = self.z[name] - a * u - a * decay * self.x[name]
        self.average(w, o.t ** 0.75 * self.lr_max ** 2, o.beta1)


class ScheduleFreeProdigy(ScheduleFree):
    def __init__(self, w, case):
        super().__init__(w, case)
        self.start = {name: value.clone() for name, value in w.items()}
        self.d, self.numerator = case.opt["d0"], 0.0

    def step(self, w, g, o):
        d, root = self.d, math.sqrt(o.beta2)
        self.numerator *= root
        size = 0.0
        for name, s in self.states.items():
            way = self.start[name] - self.z[name]
            self.numerator += d * d * o.lr * float((g[name] * way).sum())
            s["v"] = o.beta2 * s["v"] + (1 - o.beta2) * d * d * g[name] ** 2
            s["s"] = root * s["s"] + d * d * o.lr * g[name]
            size += float(s["s"].abs().sum())
        if size == 0.0:
            return
        self.d = max(d, self.numerator / size)
        for name, s in self.states.items():
            decay = o.weight_decay if w[name].dim() >= 2 else 0.0
            u = g[name] / (torch.sqrt(s["v"]) + self.d * o.eps)
            self.z[name] = (self.z[name] - decay * d * o.lr * self.x[name] - self.d * d * o.lr * u)
        self.average(w, o.t ** 0.75, o.beta1)


# ---- adafactor, amos -----------------------------------------------------------------------------


def rms(x):
    return float(torch.sqrt((x * x).mean()))


def adafactor(s, name, w, g, o):
    beta = 1 - o.t ** -o.decay_power
    squares = g * g + o.eps1
    if w.dim() >= 2:
        s["r"] = beta * s.get("r", 0.0) + (1 - beta) * squares.mean(1)
        s["c"] = beta * s.get("c", 0.0) + (1 - beta) * squares.mean(0)
        u = g / torch.sqrt(torch.outer(s["r"] / s["r"].mean(), s["c"]))
    else:
        s["v"] = beta * s["v"] + (1 - beta) * squares
        u = g / torch.sqrt(s["v"])
    u = u / max(1.0, rms(u) / o.clip_threshold)
    share = min(1.0, o.t / o.warmup) if "warmup" in vars(o) else 1.0
    own = max(o.eps2, rms(w)) * min(1e-2, 1 / math.sqrt(o.t))
    a = share * (own if o.lr is None else o.lr)
    u = a * u
    if o.beta1 > 0:
        s["m"] = o.beta1 * s["m"] + (1 - o.beta1) * u
        u = s["m"]
    return u + a * o.decay * w


def amos_scale(name, w):
    """eta: how large the numbers of this tensor are expected to be."""
    if name.endswith("bias"):
        return 0.5
    return math.sqrt(2 / w.shape[0]) if is_hidden_matrix(name, w) else 1.0


def amos(s, name, w, g, o):
    def reduced(x):
        return x.mean(1, keepdim=True) if is_table(name) else x.mean()

    root_k = math.sqrt(w.shape[1] if is_table(name) else w.numel())
    q = math.sqrt(1 - 1 / root_k)
    tau = q * math.log(root_k * (1 + q) ** 2)
    p = 1 + o.l2 * ((1 + tau / 2) ** 2 - 1) ** 2
    if o.t > 1:
        before = s["v"] * (1 - o.beta2) / (1 - o.beta2 ** (o.t - 1))
        ratio = torch.where(before > 0, g * g * (1 - o.beta2) / before, torch.ones_like(g))
        g = g / torch.sqrt(torch.clamp(ratio, min=1.0))
    squares = reduced(g * g)
    s["v"] = o.beta2 * s.get("v", 0.0) + squares
    v = torch.clamp(s["v"] * (1 - o.beta2) / (1 - o.beta2 ** o.t), min=torch.finfo(w.dtype).tiny)
    b = s.get("b", 0.0)
    root = math.sqrt(1 + b)
    x = o.lr ** 2 / root
    level = 1 + o.l2 * b * b
    shrink = 0.5 * x * (squares / v * p / level + o.l2)
    late = (2 * root / (1 + math.sqrt(1 + 2 * root / (2 + tau)))) ** 2 - 1
    extra = (1 + o.l2 * b * late) / (1 + o.l2 * level / p)
    eta = amos_scale(name, w)
    u = (shrink * w + eta * o.lr * g / torch.sqrt(v)) / (1 + eta * root * extra * late)
    s["b"] = b + x * (1 / root_k + b)
    s["m"] = o.beta1 * s["m"] + (1 - o.beta1) * u
    return s["m"]


# ---- matrices ------------------------------------------------------------------------------------


def bf16(x):
    return x.to(torch.float32).to(torch.bfloat16).to(x.dtype)


def newton_schulz(u, steps, rounded=bf16):
    x = rounded(u / max(float(u.norm()), 1e-7))
    tall = x.shape[0] > x.shape[1]
    x = x.T if tall else x
    for _ in range(int(steps)):
        a = rounded(x @ x.T)
        b = rounded(-4.7750 * a + 2.0315 * a @ a)
        x = rounded(3.4445 * x + b @ x)
    return x.T if tall else x


def muon(s, name, w, g, o):
    if not is_hidden_matrix(name, w):
        o.lr = o.adamw_lr
        return adamw(s, name, w, g, o)
    s["m"] = o.mu * s["m"] + (1 - o.mu) * g
    x = newton_schulz((1 - o.mu) * g + o.mu * s["m"], o.steps)
    fan_in, fan_out = w.shape  # GPT-2's layout; PyTorch's is the other way round
    return o.lr * (math.sqrt(max(1, fan_out / fan_in)) * x + o.decay * w)


def blocks_of(w, size):
    """The blocks of a matrix as pairs of slices."""
    size = int(size)
    return [(slice(i, i + size), slice(j, j + size))
            for i in range(0, w.shape[0], size) for j in range(0, w.shape[1], size)]


def power_of(matrix, exponent, add):
    """(matrix + add I)^exponent of a symmetric matrix; eigenvalues below 0 are rounding."""
    values, q = torch.linalg.eigh(matrix)
    return q @ torch.diag((values - min(0.0, float(values[0])) + add) ** exponent) @ q.T


def shampoo(s, name, w, g, o):
    moments(s, g, o.beta1, o.beta)
    h = nesterov_mean(s, g, o.beta1, o.t)
    correction = 1 - o.beta ** o.t
    u = h / (torch.sqrt(s["v"] / correction) + o.eps)
    renew = o.t == o.start or o.t > o.start and o.t % o.every == 0
    for k, at in enumerate(blocks_of(w, o.block) if w.dim() >= 2 else []):
        block, old = g[at], s.setdefault(k, {"l": 0.0, "r": 0.0})
        old["l"] = o.beta * old["l"] + (1 - o.beta) * block @ block.T
        old["r"] = o.beta * old["r"] + (1 - o.beta) * block.T @ block
        if renew:
            old["pl"] = power_of(old["l"] / correction, -1 / 4, o.eps)
            old["pr"] = power_of(old["r"] / correction, -1 / 4, o.eps)
        if o.t >= o.start:
            d = old["pl"] @ h[at] @ old["pr"]
            u[at] = d * (u[at].norm() / (d.norm() + 1e-16))
    return o.lr * (u + o.decay * w)


def ridge(matrix, eps):
    largest = float(torch.linalg.eigvalsh(matrix)[-1])
    return matrix + eps * largest * torch.eye(len(matrix), dtype=matrix.dtype)


def caspr_start(block, eps):
    n, m = block.shape
    left, right = torch.eye(n, dtype=block.dtype), torch.eye(m, dtype=block.dtype)
    return {"l": eps * left, "l_then": eps * left, "r": right, "pl": left, "pr": right}


def caspr(s, name, w, g, o):
    moments(s, g, o.beta1, o.beta)
    h = nesterov_mean(s, g, o.beta1, o.t)
    a = h / (torch.sqrt(s["v"] / (1 - o.beta ** o.t)) + 1e-8)
    u = a.clone()
    for k, at in enumerate(blocks_of(w, o.block) if w.dim() >= 2 else []):
        block, n = g[at], g[at].shape[0]
        c = s.setdefault(k, caspr_start(block, o.eps))
        change = 1.0
        if o.t > 1 and (o.t - 1) % o.every == 0:
            change = max(0.0, float(torch.trace(c["pl"] @ ridge(c["l_then"], o.eps) @ c["pl"]))) / n
            c["l_then"] = c["l"]
        c["l"] = o.beta * c["l"] + (1 - o.beta) * block @ block.T
        turned = block.T @ c["pl"]
        c["r"] = o.beta * change * c["r"] + (1 - o.beta) * turned @ turned.T / n
        if o.t % o.every == 0:
            c["pl"] = power_of(ridge(c["l"], o.eps), -1 / 2, 0.0)
            c["pr"] = power_of(ridge(c["r"], o.eps), -1 / 2, 0.0)
        if o.t > o.start:
            u[at] = c["pl"] @ h[at] @ c["pr"]
    return o.lr * (u * (a.norm() / u.norm()) + o.decay * w)


class Basis:
    """One side of a matrix under soap: the statistics and the eigenvectors so far."""

    def __init__(self, size, o, dtype):
        self.beta, self.turns = o.shampoo_beta, size <= o.max_dim
        self.sums = torch.zeros(size, size, dtype=dtype)
        self.q = torch.eye(size, dtype=dtype)

    def see(self, product):
        self.sums = self.beta * self.sums + (1 - self.beta) * product

    def begin(self):
        if self.turns:
            self.q = torch.linalg.eigh(self.sums)[1].flip(1)

    def renew(self):
        """One power iteration; gives the order that the columns were put in first."""
        if not self.turns:
            return torch.arange(len(self.q))
        order = torch.argsort(torch.diag(self.q.T @ self.sums @ self.q), descending=True)
        self.q = torch.linalg.qr(self.sums @ self.q[:, order])[0]
        return order


def soap_sides(w, o):
    return Basis(w.shape[0], o, w.dtype), Basis(w.shape[1], o, w.dtype)


def soap(s, name, w, g, o):
    if w.dim() >= 2:
        left, right = s.setdefault("sides", soap_sides(w, o))
        before = left.q, right.q
        left.see(g @ g.T)
        right.see(g.T @ g)
    if o.t == 1:
        if w.dim() >= 2:
            left.begin()
            right.begin()
        return torch.zeros_like(w)
    tau = o.t - 1
    moments(s, before[0].T @ g @ before[1] if w.dim() >= 2 else g, o.beta1, o.beta2)
    u = s["m"] / (torch.sqrt(s["v"]) + o.eps)
    if w.dim() >= 2:
        u = before[0] @ u @ before[1].T
        if tau % o.every == 0:
            s["v"] = s["v"][left.renew()][:, right.renew()]
        still = before[0] @ s["m"] @ before[1].T
        s["m"] = left.q.T @ still @ right.q
    size = o.lr * math.sqrt(1 - o.beta2 ** tau) / (1 - o.beta1 ** tau)
    after = (w - size * u) * (1 - o.lr * o.decay)
    return w - after


# ---- few bits ------------------------------------------------------------------------------------


def dynamic_map(bits, signed):
    """2^bits values: fine near 0 and coarse near 1, a digit of the exponent for each bit."""
    values = [0.0, 1.0]
    for i in range(bits - 1):
        edges = np.linspace(0.1, 1.0, 2 ** (i if signed else i + 1) + 1)
        middles = (edges[:-1] + edges[1:]) / 2 * 10.0 ** (i - bits + 2)
        values += list(middles) + (list(-middles) if signed else [])
    assert len(values) == 2 ** bits
    return np.sort(np.array(values, np.float32).astype(np.float64))


class FewBits:
    def __init__(self, bits):
        self.block = 256 if bits == 8 else 128
        self.codes = {"m": dynamic_map(bits, True), "v": dynamic_map(bits, False)}

    def rounded(self, x, which):
        codes = torch.tensor(self.codes[which], dtype=x.dtype)
        parts = []
        for part in x.reshape(-1).split(self.block):
            scale = part.abs().max()
            if scale == 0:
                parts.append(torch.zeros_like(part))
                continue
            nearest = torch.bucketize(part / scale, (codes[:-1] + codes[1:]) / 2)
            if which == "v":  # it is divided by: what is not 0 does not become 0
                nearest[(part > 0) & (nearest == 0)] = 1
            parts.append(codes[nearest] * scale)
        return torch.cat(parts).reshape(x.shape)

    def __call__(self, s, name, w, g, o):
        subtracted = adamw(s, name, w, g, o)
        if w.numel() >= 4096:
            for which in ("m", "v"):
                s[which] = self.rounded(s[which], which)
        return subtracted
