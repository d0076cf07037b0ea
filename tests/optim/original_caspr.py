#!/usr/bin/env python3
"""original_caspr.py -- ten steps with the published CASPR program, for tests/optim/test_oracle.c.

    python3 tests/optim/original_caspr.py FOLDER              writes the case caspr-original
    python3 tests/optim/original_caspr.py FOLDER --compare    how far rules.caspr is from it

FOLDER is that of the AlgoPerf v0.5 submission, previous_leaderboards/algoperf_v05/submissions/
external_tuning/caspr_adaptive of github.com/mlcommons/submissions_algorithms (12c8e4e).  Nothing of
it is in this tree.  The model, the gradients and the comparison are those of oracle.py; the step is
the submission's own, in float64, with its coupled Newton iteration.  It needs an axis of devices for
its roots: here one of length 1.

Needs oracle.py's packages, and jax, optax, flax, chex.
"""
import contextlib
import importlib.util
import io
import os
import sys
import types

import jax
import numpy as np
import torch

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import oracle  # noqa: E402
import rules  # noqa: E402

jax.config.update("jax_enable_x64", True)
PACKAGE = ("submissions", "submissions_algorithms_v0_5", "AlgoPerf_Team_16", "external_tuning",
           "caspr_adaptive")
OPT = "beta1=0.9,beta=0.95,eps=1e-6,block=16,every=2,start=3"


def load(folder):
    """Its modules under the names by which they import each other."""
    jax.tree_map = jax.tree_util.tree_map  # the name of the JAX of that time
    for n in range(1, len(PACKAGE) + 1):
        sys.modules.setdefault(".".join(PACKAGE[:n]), types.ModuleType(PACKAGE[n - 1]))
    for name in ("distributed_shampoo", "caspr_adaptive_helper"):
        full = ".".join(PACKAGE + (name,))
        spec = importlib.util.spec_from_file_location(full, os.path.join(folder, name + ".py"))
        sys.modules[full] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return module


class Original:
    """The submission's direction (it prints a lot), then its decoupled decay."""

    def __init__(self, helper, w, opt):
        scale = helper.scale_by_caspr(
            b1=opt["beta1"], b2=opt["beta"], eps=1e-8, matrix_epsilon=opt["eps"],
            block_size=int(opt["block"]), preconditioning_compute_steps=int(opt["every"]),
            start_preconditioning_step=int(opt["start"]), nesterov=True, relative_epsilon=True,
            inverse_type="coupled newton", error_tolerance=0.1, verbose=False,
            batch_axis_name="batch")
        self.update = jax.jit(jax.vmap(lambda g, s: scale.update(g, s), axis_name="batch"))
        with contextlib.redirect_stdout(io.StringIO()):
            state = scale.init({name: value.numpy() for name, value in w.items()})
        self.state = jax.tree_util.tree_map(lambda x: x[None], state)

    def step(self, w, g, o):
        with contextlib.redirect_stdout(io.StringIO()):
            u, self.state = self.update({name: value.numpy()[None] for name, value in g.items()},
                                        self.state)
        for name in w:
            decay = o.weight_decay if w[name].dim() >= 2 else 0.0
            w[name].sub_(o.lr * (torch.tensor(np.array(u[name][0])) + decay * w[name]))

    def kept(self):
        return {}


def compare(helper):
    """Both in float64, on the same network and batches."""
    coarse = OPT.replace("eps=1e-6", "eps=1e-2")
    for opt in (OPT, coarse, coarse.replace("block=16", "block=8")):
        start, batches = oracle.prepare("small")
        found, truth = (oracle.train(
            oracle.Case("caspr", "caspr", rule, opt), start, batches)[0] for rule in (
                oracle.per_tensor(rules.caspr),
                lambda w, case: Original(helper, w, case.opt)))
        print("%s: %.1e %s" % (opt, *oracle.errors_of(found, truth, start)[0]))


def main():
    torch.set_num_threads(1)
    helper = load(sys.argv[1])
    if "--compare" in sys.argv[2:]:
        compare(helper)
        return
    start, batches = oracle.prepare("small")
    case = oracle.Case("caspr-original", "caspr", lambda w, case: Original(helper, w, case.opt), OPT)
    oracle.write_case(os.path.join(HERE, "fixtures", "small", "cases"), case, start, batches)


if __name__ == "__main__":
    main()
