#!/usr/bin/env python3
"""oracle.py -- what tests/optim/test_oracle.c compares snug's optimizers with.

Ten steps of a small GPT-2 (the network of tests/train/fixtures/make_fixtures.py at other sizes)
with every optimizer of rules.py, in float64 from float32 start values, stored as float32.

    python3 tests/optim/oracle.py              writes tests/optim/fixtures, the same bytes each time
    python3 tests/optim/oracle.py --float32    what float32 does to each, to judge the limits
    python3 tests/optim/oracle.py --check      against what PyTorch has that is nearly the same rule

Files: fixtures/MODEL/ is a Hugging Face folder with batches.safetensors in it.  In its cases/,
NAME.recipe is the recipe, NAME.safetensors the weights after ten steps, some states, all losses and
gradient norms, and `limit`: the largest relative error allowed (see CASES).

The numbers are chosen so that float32 can follow.  Adam, Lion and the like divide a gradient by its
own size, and what rounding left of a gradient near 0 is blown up by that; so eps is large here,
near the size of the gradients, which also makes its place in each rule matter.  Learning rates are
large, so that ten steps move each tensor far more than its weights' last digits; the usual rate and
decay make 1 - lr decay a number that float32 has.  The seed is one of 17 that were tried: with it
PyTorch's float32 stays within 3e-6 of float64 under every rule that does no rounding of its own,
and no sign of lion's hangs by a hair.

Needs torch >= 2.9 (--check: its Muon) and numpy, nothing else.
"""
import json
import os
import sys
from types import SimpleNamespace

import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(HERE, "..", "train", "fixtures"))
sys.path.insert(0, HERE)
import make_fixtures as gpt2  # noqa: E402  (the network, start weights, batches, safetensors)
import rules  # noqa: E402
from rules import from_torch, per_tensor, torch_adam, torch_sgd  # noqa: E402

BATCH, STEPS = 3, 10
# `wide` is there for what begins at 4096 elements: its token table has 4160, a layer 4096.
MODELS = {"small": {"LAYERS": 1, "HEADS": 2, "WIDTH": 8, "VOCABULARY": 31, "POSITIONS": 12},
          "wide": {"LAYERS": 1, "HEADS": 2, "WIDTH": 32, "VOCABULARY": 130, "POSITIONS": 12}}
LENGTH = 10  # two positions less than there are: rows that never see a gradient
SEED = 15


# ---- the cases -----------------------------------------------------------------------------------


class Case:
    """One recipe and its rule.  `lr` None: not in the recipe."""

    def __init__(self, name, optimizer, rule, opt="", lr=2 ** -6, decay=0.125, limit=1e-5,
                 model="small", **keys):
        self.name, self.optimizer, self.rule, self.limit = name, optimizer, rule, limit
        self.model, self.opt_text, self.keys = model, opt, keys
        self.opt = {key: float(value) for key, value in
                    (pair.split("=") for pair in opt.split(",") if pair)}
        self.recipe = {"lr": lr, "weight-decay": decay, "clip": 1.0, **keys}

    def text(self):
        lines = ["optimizer = " + self.optimizer]
        lines += ["opt = " + self.opt_text] if self.opt_text else []
        lines += ["%s = %g" % pair for pair in self.recipe.items() if pair[1] is not None]
        lines += ["schedule = constant", "batch = %d" % BATCH, "seq = %d" % LENGTH]
        return "# made by tests/optim/oracle.py\n" + "\n".join(lines) + "\n"


ADAM = "beta1=0.9,beta2=0.95,eps=1e-2"

CASES = [
    Case("sgd", "sgd", torch_sgd(False), lr=0.5, decay=0.01),
    Case("momentum", "momentum", torch_sgd(False), "mu=0.9", lr=0.1, decay=0),
    Case("momentum-nesterov", "momentum", torch_sgd(True), "mu=0.9,nesterov=1", lr=0.1, decay=0),
    Case("momentum-decay", "momentum", torch_sgd(False), "mu=0.9", lr=0.1, decay=0.1),
    Case("adagrad", "adagrad", per_tensor(rules.adagrad), "eps=1e-4", decay=0),
    Case("adagrad-decay", "adagrad", per_tensor(rules.adagrad), "eps=1e-4", decay=0.1),
    Case("rmsprop", "rmsprop", per_tensor(rules.rmsprop), "gamma=0.9,eps=1e-4", lr=0.01, decay=0),
    Case("rmsprop-decay", "rmsprop", per_tensor(rules.rmsprop), "gamma=0.9,eps=1e-4", lr=0.01),
    # PyTorch's place of eps
    Case("adagrad-eps-outside", "adagrad", rules.TORCH_ADAGRAD, "eps=1e-2,eps-outside=1"),
    Case("rmsprop-eps-outside", "rmsprop", rules.TORCH_RMSPROP,
         "gamma=0.9,eps=1e-2,eps-outside=1", lr=0.01),
    Case("adadelta", "adadelta", rules.TORCH_ADADELTA, "rho=0.9,eps=1e-4", lr=1.0, decay=0),
    Case("adadelta-decay", "adadelta", rules.TORCH_ADADELTA, "rho=0.9,eps=1e-4", lr=0.5),
    Case("adam", "adam", torch_adam(torch.optim.Adam), ADAM, decay=0),
    Case("adam-decay", "adam", torch_adam(torch.optim.Adam), ADAM),
    Case("adam-decoupled", "adam", torch_adam(torch.optim.AdamW), ADAM + ",decoupled=1"),
    # beta2 so small that v falls: without that the largest v is the last one
    Case("amsgrad", "amsgrad", torch_adam(torch.optim.Adam, amsgrad=True),
         "beta1=0.9,beta2=0.5,eps=1e-2", decay=0),
    Case("amsgrad-decay", "amsgrad", torch_adam(torch.optim.Adam, amsgrad=True),
         "beta1=0.9,beta2=0.5,eps=1e-2"),
    Case("amsgrad-decoupled", "amsgrad", torch_adam(torch.optim.AdamW, amsgrad=True),
         "beta1=0.9,beta2=0.5,eps=1e-2,decoupled=1"),
    Case("adamw", "adamw", torch_adam(torch.optim.AdamW), ADAM),
    Case("nadamw", "nadamw", per_tensor(rules.nadamw), ADAM),
    Case("generalized-adam", "generalized-adam", per_tensor(rules.generalized_adam),
         ADAM + ",nesterov=1,precondition=1"),
    Case("generalized-adam-plain", "generalized-adam", per_tensor(rules.generalized_adam),
         ADAM + ",nesterov=0,precondition=1"),
    Case("generalized-adam-heavy-ball", "generalized-adam", per_tensor(rules.generalized_adam),
         ADAM + ",nesterov=1,precondition=0", lr=0.1),
    Case("nadamp", "nadamp", per_tensor(rules.nadamp), ADAM + ",p=1.5"),
    Case("cyclic-lr", "cyclic-lr", per_tensor(rules.cyclic), ADAM + ",cycles=2,lr-min=1e-3",
         lr=0.04, warmup=2),
    # after updates 4, 6, 8, 10 of 10; the first copy is overwritten by the last
    Case("lawa-queue", "lawa-queue", rules.Averaged, ADAM + ",k=3,start=0.25,every=0.15"),
    Case("lawa-ema", "lawa-ema", rules.Averaged, ADAM + ",beta=0.2,start=0.25,every=0.15"),
    Case("schedule-free-adamw", "schedule-free-adamw", rules.ScheduleFreeAdamW, ADAM + ",warmup=3",
         lr=0.1),
    # d0 far above the default: with 1e-6 ten steps stay within the last digits of the weights
    Case("schedule-free-prodigy", "schedule-free-prodigy", rules.ScheduleFreeProdigy,
         "beta1=0.9,beta2=0.95,eps=1e-2,d0=0.02", lr=1.0),
    # eps1 far above the default: the keys' bias has no gradient but rounding, and without eps1 that
    # would count as much as any other in the mean over the tensor.  eps2: above some tensors' RMS
    Case("adafactor", "adafactor", per_tensor(rules.adafactor),
         "beta1=0,decay-power=0.8,clip-threshold=1,eps1=1e-6,eps2=1e-3"),
    Case("adafactor-relative", "adafactor", per_tensor(rules.adafactor),
         "beta1=0,decay-power=0.8,clip-threshold=1,eps1=1e-6,eps2=0.2", lr=None),
    Case("adafactor-relative-warmup", "adafactor", per_tensor(rules.adafactor),
         "beta1=0,decay-power=0.8,clip-threshold=1,eps1=1e-6,eps2=0.2", lr=None, warmup=4),
    Case("adafactor-momentum", "adafactor", per_tensor(rules.adafactor),
         "beta1=0.9,decay-power=0.8,clip-threshold=1,eps1=1e-6,eps2=1e-3"),
    # Five iterations blow up what bf16 lost of the small singular values: one number that falls
    # to the other side of a rounding moves a tensor by up to 4e-2; PyTorch's Muon, which rounds at
    # other places, is 6e-2 away, four iterations are 2e-1.  After one iteration these are 2e-4 and
    # 2e-3, and that case checks the rest of the rule: no option can be off by 2% in it.
    Case("muon", "muon", per_tensor(rules.muon),
         "mu=0.95,steps=5,adamw-lr=0.01,beta1=0.9,beta2=0.95,eps=1e-2", limit=8e-2),
    Case("muon-one-iteration", "muon", per_tensor(rules.muon),
         "mu=0.95,steps=1,adamw-lr=0.01,beta1=0.9,beta2=0.95,eps=1e-2", limit=3e-3),
    Case("shampoo", "shampoo", per_tensor(rules.shampoo),
         "beta1=0.9,beta=0.95,eps=1e-3,block=16,every=2,start=3"),
    Case("caspr", "caspr", per_tensor(rules.caspr),
         "beta1=0.9,beta=0.95,eps=1e-2,block=16,every=2,start=3"),
    # The statistics are squares of gradients: in float32 the directions of the smallest eigenvalues
    # keep few digits (2e-4 here with PyTorch's float32 qr).
    Case("soap", "soap", per_tensor(rules.soap),
         "beta1=0.9,beta2=0.95,shampoo-beta=0.9,eps=1e-2,every=2,max-dim=8", limit=1e-3),
    Case("amos", "amos", per_tensor(rules.amos), "beta1=0.9,beta2=0.98,l2=0.012", lr=0.2,
         decay=None),
    # lr: of those tried the one where no sign hangs by less than 2e-5 of its tensor's gradients
    Case("lion", "lion", per_tensor(rules.lion), "beta1=0.9,beta2=0.99", lr=0.017),
    # A state near the middle between two codes goes to one or the other by its last digits: with
    # float32's noise this moved a tensor by 4e-4 (8 bits) and 1e-4 (4 bits), and unquantized states
    # would move it by 1e-2 and 1e-1.
    Case("adam-8bit", "adam-8bit", per_tensor(rules.FewBits(8)), ADAM, limit=2e-3, model="wide"),
    Case("adam-4bit", "adam-4bit", per_tensor(rules.FewBits(4)), ADAM, limit=5e-3, model="wide"),
]


# ---- training ------------------------------------------------------------------------------------


def use_model(model):
    """The sizes of make_fixtures.py are its constants."""
    for size, value in {**MODELS[model], "LENGTH": LENGTH, "STEPS": STEPS, "SEED": SEED}.items():
        setattr(gpt2, size, value)


def gradients_of(w, tokens, targets):
    leaves = {name: value.detach().clone().requires_grad_() for name, value in w.items()}
    loss = gpt2.loss_of(leaves, torch.tensor(tokens, dtype=torch.long),
                        torch.tensor(targets, dtype=torch.long))
    loss.backward()
    for name, leaf in leaves.items():
        if name.endswith("attn.c_attn.bias"):
            leaf.grad[gpt2.WIDTH:2 * gpt2.WIDTH] = 0.0  # what it is but for rounding
    return loss.item(), leaves


def train(case, start, batches, dtype=torch.float64):
    """What is compared after the last step, and losses and norms of all steps."""
    w = {name: torch.tensor(value, dtype=dtype) for name, value in start.items()}
    rule, losses, norms = case.rule(w, case), [], []
    options = {key.replace("-", "_"): value for key, value in
               {**case.keys, **case.opt, "lr": case.recipe["lr"],
                "weight_decay": case.recipe["weight-decay"]}.items()}
    for t in range(1, STEPS + 1):
        loss, leaves = gradients_of(w, batches[0][t - 1], batches[1][t - 1])
        norms.append(float(torch.nn.utils.clip_grad_norm_(list(leaves.values()), 1.0)))
        losses.append(loss)
        rule.step(w, {name: leaf.grad for name, leaf in leaves.items()},
                  SimpleNamespace(**options, t=t, n_steps=STEPS))
    after = {**w, **rule.kept()}
    return {name: value.detach().numpy().astype(np.float64) for name, value in after.items()}, \
        losses, norms


def compared(name, value):
    """The keys' bias shifts all scores of a row alike: its gradient is 0 but for rounding, and
    where it goes by that changes nothing."""
    if not name.endswith("attn.c_attn.bias"):
        return value
    return np.delete(value, range(gpt2.WIDTH, 2 * gpt2.WIDTH))


def weight_of(name, start):
    """The weight that a state belongs to."""
    return name if name in start else name.split(".", 1)[1]


def errors_of(found, truth, start):
    """As test_oracle.c has it, largest first: |found - truth| / |truth - start| of each tensor."""
    errors = []
    for name in truth:
        weight = weight_of(name, start)
        a, b, c = (compared(weight, x) for x in (found[name], truth[name], start[weight]))
        errors.append((np.linalg.norm(a - b) / np.linalg.norm(b - c), name))
    return sorted(errors, reverse=True)


def prepare(model):
    """Weights so large, and norms so small, that every tensor gets a gradient worth the name."""
    use_model(model)
    start = gpt2.start_weights()
    for name, w in start.items():
        if name.endswith("weight"):
            w *= np.float32(5 if w.ndim == 2 else 0.5)
    return start, gpt2.make_batches(BATCH, SEED + BATCH)


def report_float32():
    """PyTorch's float32 in the same rules: about what a good float32 program can reach."""
    for case in CASES:
        start, batches = prepare(case.model)
        truth, losses, norms = train(case, start, batches)
        found = train(case, start, batches, torch.float32)[0]
        worst = errors_of(found, truth, start)
        print("%-28s limit %.0e  worst %s  loss %.3f -> %.3f, norms %.2f .. %.2f" % (
            case.name, case.limit, ", ".join("%.1e %s" % pair for pair in worst[:2]),
            losses[0], losses[-1], min(norms), max(norms)))


class TorchMuon:
    """PyTorch's Muon on the transposed matrices: its layout is [out, in]."""

    def __init__(self, w, case):
        self.turned = {name: value.T.clone() for name, value in w.items()
                       if rules.is_hidden_matrix(name, value)}
        self.muon = torch.optim.Muon(
            list(self.turned.values()), lr=case.recipe["lr"], momentum=case.opt["mu"],
            weight_decay=case.recipe["weight-decay"], ns_steps=int(case.opt["steps"]))
        self.rest = rules.PerTensor(rules.adamw, {name: value for name, value in w.items()
                                                  if name not in self.turned})

    def step(self, w, g, o):
        for name, value in self.turned.items():
            value.grad = g[name].T.clone()
        self.muon.step()
        for name, value in self.turned.items():
            w[name].copy_(value.T)
        o.lr = o.adamw_lr
        self.rest.step({name: w[name] for name in self.rest.states}, g, o)

    def kept(self):
        return {}


def check_against_torch():
    """Where the rules meet: PyTorch's with eps 0 or nearly, beside ours.  All but Muon agree to
    rounding; Muon rounds to bf16 at other places."""
    tiny = 1e-30
    pairs = [
        ("adagrad", "eps=%g" % tiny, per_tensor(rules.adagrad), from_torch(
            lambda groups, lr, opt: torch.optim.Adagrad(groups, lr=lr, eps=tiny))),
        ("rmsprop", "gamma=0.9,eps=%g" % tiny, per_tensor(rules.rmsprop), from_torch(
            lambda groups, lr, opt: torch.optim.RMSprop(groups, lr=lr, alpha=0.9, eps=tiny))),
        ("adamw", ADAM, per_tensor(rules.adamw), torch_adam(torch.optim.AdamW)),
        ("heavy-ball", "beta1=0.9,nesterov=1,precondition=0", per_tensor(rules.generalized_adam),
         from_torch(lambda groups, lr, opt: torch.optim.SGD(
             groups, lr=lr, momentum=0.9, nesterov=True))),
        ("adafactor", "beta1=0,decay-power=0.8,clip-threshold=1,eps1=%g,eps2=1e-3" % tiny,
         per_tensor(lambda s, name, w, g, o: rules.adafactor(s, name, w, g, relative(o))),
         from_torch(lambda groups, lr, opt: torch.optim.Adafactor(
             groups, lr=lr, eps=(tiny, 1e-3)))),
        ("muon", "mu=0.95,steps=5,adamw-lr=0.01,beta1=0.9,beta2=0.95,eps=1e-2",
         per_tensor(rules.muon), TorchMuon),
    ]
    for name, opt, ours, theirs in pairs:
        start, batches = prepare("small")
        found, truth = (train(Case(name, name, rule, opt, lr=0.01, decay=0), start, batches)[0]
                        for rule in (ours, theirs))
        errors = [pair for pair in errors_of(found, truth, start) if "c_attn.bias" not in pair[1]]
        print("%-12s %.1e %s" % (name, *errors[0]))


def relative(o):
    o.lr = None
    return o


def write_model(folder, start, batches):
    config = {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"],
              "n_layer": gpt2.LAYERS, "n_head": gpt2.HEADS, "n_embd": gpt2.WIDTH,
              "n_positions": gpt2.POSITIONS, "vocab_size": gpt2.VOCABULARY,
              "layer_norm_epsilon": gpt2.NORM_EPS, "activation_function": "gelu_new",
              "tie_word_embeddings": True}
    with open(os.path.join(folder, "config.json"), "w") as file:
        json.dump(config, file, indent=2)
        file.write("\n")
    gpt2.write_safetensors(os.path.join(folder, "model.safetensors"), start)
    gpt2.write_safetensors(os.path.join(folder, "batches.safetensors"),
                           {"tokens": batches[0], "targets": batches[1]})


def write_case(folder, case, start, batches):
    after, losses, norms = train(case, start, batches)
    series = {"losses": np.array(losses, "<f8"), "norms": np.array(norms, "<f8"),
              "limit": np.array([case.limit], "<f8")}
    gpt2.write_safetensors(os.path.join(folder, case.name + ".safetensors"),
                           {**gpt2.as_f32(after), **series})
    with open(os.path.join(folder, case.name + ".recipe"), "w") as file:
        file.write(case.text())


def write_fixtures():
    for model in MODELS:
        folder = os.path.join(HERE, "fixtures", model)
        os.makedirs(os.path.join(folder, "cases"), exist_ok=True)
        start, batches = prepare(model)
        write_model(folder, start, batches)
        for case in CASES:
            if case.model == model:
                write_case(os.path.join(folder, "cases"), case, start, batches)


def main():
    torch.set_num_threads(1)
    if "--float32" in sys.argv[1:]:
        report_float32()
    elif "--check" in sys.argv[1:]:
        check_against_torch()
    else:
        write_fixtures()


if __name__ == "__main__":
    main()
