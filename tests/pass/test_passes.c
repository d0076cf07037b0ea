/*
 * test_passes.c -- what each pass does to small programs in text form, one table entry per
 * behaviour.
 *
 * An entry names a pass, a program and the ops that must result, or words of the message if the
 * program is refused.  All entries share one list of declarations; a tensor that no op uses does no
 * harm.  The file is long because the table is.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/text.h"
#include "optim/optim.h"
#include "pass/pass.h"
#include "support/ops_text.h"

#define LENGTH(array) (sizeof(array) / sizeof *(array))

static const char declarations[] =
    "tensor x input f32 [2 4]; tensor y input f32 [2 4]; tensor t input i32 [2]\n"
    "tensor i input i32 [2 3]; tensor i6 input i32 [2 3]\n"
    "tensor w parameter f32 [4 4] persistent decays; tensor bias parameter f32 [4] persistent\n"
    "tensor w2 parameter f32 [4 4] persistent decays; tensor bias2 parameter f32 [4] persistent\n"
    "tensor gm parameter f32 [4] persistent; tensor bt parameter f32 [4] persistent\n"
    "tensor e parameter f32 [9 4] persistent decays; tensor pos parameter f32 [5 4] persistent\n"
    "tensor s temporary f64 [8] persistent; scalars s\n"
    "tensor a activation f32 [2 4]; tensor b activation f32 [2 4]; tensor c activation f32 [2 4]\n"
    "tensor d activation f32 [2 4]; tensor h activation f32 [2 4]\n"
    "tensor gh parameter f32 [2] persistent; tensor rstd4 activation f32 [4]\n"
    "tensor seen activation f32 [1 4] view=h+4 output; tensor o activation f32 [2 4] output\n"
    "tensor part activation f32 [2 4] view=whole+8; tensor whole activation f32 [16] output\n"
    "tensor em activation f32 [2 3 4]; tensor lse6 activation f32 [6]\n"
    "tensor l activation f32 [1] output; tensor lse activation f32 [2]\n"
    "tensor mean activation f32 [2]; tensor rstd activation f32 [2]\n"
    "tensor state optimizer f32 [2 4] persistent\n";
static const char gradients[] =
    "tensor dw gradient f32 [4 4]; tensor dg gradient f32 [4]; tensor db gradient f32 [4]\n"
    "tensor dc gradient f32 [4]; tensor dw2 gradient f32 [4 4]\n"
    "tensor de gradient f32 [9 4]; tensor dem activation f32 [2 3 4]\n";

#define NORM_A "a = act x {act=relu}; "
#define SLOPE  "a = linear_grad_x y, w, x {act=gelu}; "

struct row {
    const char *name;
    pass_fn *pass;
    const char *text, *expected; /* ops joined by "; ", or words of the message */
    enum snug_status status;
    enum dtype compute;
    int n_micro;
};
#define OK SNUG_OK, DTYPE_f32, 1
#define NO SNUG_BAD_PROGRAM, DTYPE_f32, 1

/* clang-format off */
static const struct row rows[] = {
    /* ---- drop_dead ---- */
    {"unread result goes", pass_drop_dead,
     "a = act x; o = act x", "o = act x", OK},
    {"what the dead read dies with them", pass_drop_dead,
     "a = act x; b = act a; c = add a, b; o = act x", "o = act x", OK},
    {"effect keeps reads", pass_drop_dead,
     "dw = linear_grad_w x, y; w = update dw, s, w {rule=sgd}", "dw = linear_grad_w x, y; w = update dw, s, w {rule=sgd}", OK},
    {"an accumulate chain stays", pass_drop_dead,
     "a = accumulate x; a = accumulate y {accumulate=yes}; o = act a",
     "a = accumulate x; a = accumulate y {accumulate=yes}; o = act a", OK},
    {"an unread chain goes", pass_drop_dead,
     "a = accumulate x; a = accumulate y {accumulate=yes}; o = act x", "o = act x", OK},
    {"one read result of several is enough", pass_drop_dead,
     "a, mean, rstd = layernorm x, gm, bt; o, dg, db = layernorm_grad y, x, gm, mean, rstd",
     "a, mean, rstd = layernorm x, gm, bt; o, dg, db = layernorm_grad y, x, gm, mean, rstd", OK},
    {"a part of an output stays", pass_drop_dead,
     "part = act x", "part = act x", OK},
    {"a whole whose part is an output stays", pass_drop_dead,
     "h = act x", "h = act x", OK},
    {"what lives from step to step stays", pass_drop_dead,
     "state = accumulate x {accumulate=yes}", "state = accumulate x {accumulate=yes}", OK},
    {"all dead is refused", pass_drop_dead,
     "a = act x; b = act a", "all 2 ops are dead", NO},

    /* ---- fuse ---- */
    {"add and norm", pass_fuse,
     "a = add x, y; b, mean, rstd = layernorm a, gm, bt {eps=0.5}; o = add a, b",
     "a, b, mean, rstd = add_layernorm x, y, gm, bt {eps=0.5}; o = add a, b", OK},
    {"add and norm in training: an update of gamma comes later", pass_fuse,
     "a = add x, y; b, mean, rstd = layernorm a, gm, bt; gm = update dg, s, gm {rule=sgd}",
     "a, b, mean, rstd = add_layernorm x, y, gm, bt; gm = update dg, s, gm {rule=sgd}", OK},
    {"add and norm with an update of gamma between", pass_fuse,
     "a = add x, y; gm = update dg, s, gm {rule=sgd}; b, mean, rstd = layernorm a, gm, bt",
     "a = add x, y; gm = update dg, s, gm {rule=sgd}; b, mean, rstd = layernorm a, gm, bt", OK},
    {"add and norm with an addition to the sum between", pass_fuse,
     "a = add x, y; a = accumulate x {accumulate=yes}; b, mean, rstd = layernorm a, gm, bt",
     "a = add x, y; a = accumulate x {accumulate=yes}; b, mean, rstd = layernorm a, gm, bt", OK},
    {"dropout, add and norm", pass_fuse,
     "a = dropout y, s {dropout=0.5, site=3}; b = add x, a; c, mean, rstd = layernorm b, gm, bt",
     "b, c, mean, rstd = add_layernorm x, y, gm, bt, s {dropout=0.5, site=3}", OK},
    {"dropout, add and norm, operands swapped", pass_fuse,
     "a = dropout y, s {dropout=0.5}; b = add a, x; c, mean, rstd = layernorm b, gm, bt",
     "b, c, mean, rstd = add_layernorm x, y, gm, bt, s {dropout=0.5}", OK},
    {"two dropouts of one sum: the first is taken", pass_fuse,
     "a = dropout y, s {dropout=0.5}; h = dropout x, s {dropout=0.5, site=1}; b = add a, h; "
     "c, mean, rstd = layernorm b, gm, bt",
     "h = dropout x, s {dropout=0.5, site=1}; b, c, mean, rstd = add_layernorm h, y, gm, bt, s "
     "{dropout=0.5}", OK},
    {"dropout that others read", pass_fuse,
     "a = dropout y, s {dropout=0.5}; b = add x, a; c, mean, rstd = layernorm b, gm, bt; o = act a",
     "a = dropout y, s {dropout=0.5}; b, c, mean, rstd = add_layernorm x, a, gm, bt; o = act a", OK},
    {"dropout of what is written between", pass_fuse,
     "h = accumulate y; a = dropout h, s {dropout=0.5}; h = accumulate x {accumulate=yes}; "
     "b = add x, a; c, mean, rstd = layernorm b, gm, bt",
     "h = accumulate y; a = dropout h, s {dropout=0.5}; h = accumulate x {accumulate=yes}; "
     "b, c, mean, rstd = add_layernorm x, a, gm, bt", OK},
    {"add and norm without statistics", pass_fuse,
     "a = add x, y; b, _, _ = layernorm a, gm, bt", "a, b, _, _ = add_layernorm x, y, gm, bt", OK},
    {"add and rmsnorm", pass_fuse,
     "a = add x, y; b, rstd = rmsnorm a, gm {eps=0.5}; o = add a, b",
     "a, b, rstd = add_rmsnorm x, y, gm {eps=0.5}; o = add a, b", OK},
    {"add and rmsnorm with an update of gamma between", pass_fuse,
     "a = add x, y; gm = update dg, s, gm {rule=sgd}; b, rstd = rmsnorm a, gm",
     "a = add x, y; gm = update dg, s, gm {rule=sgd}; b, rstd = rmsnorm a, gm", OK},
    {"add and rmsnorm with a reader of an output's bytes between", pass_fuse,
     "b = act x; a = add x, y; c = act b; b, rstd = rmsnorm a, gm",
     "b = act x; a = add x, y; c = act b; b, rstd = rmsnorm a, gm", OK},
    {"add and rmsnorm of heads", pass_fuse,
     "a = add x, y; b, rstd4 = rmsnorm a, gh", "a = add x, y; b, rstd4 = rmsnorm a, gh", OK},
    {"dropout, add and rmsnorm", pass_fuse,
     "a = dropout y, s {dropout=0.5, site=3}; b = add x, a; c, rstd = rmsnorm b, gm",
     "b, c, rstd = add_rmsnorm x, y, gm, s {dropout=0.5, site=3}", OK},
    {"linear and act, the value before is read", pass_fuse,
     "a = linear x, w, bias {layout=in_out}; b = act a {act=gelu}; c = act_grad y, a {act=gelu}",
     "b, a = linear x, w, bias {act=gelu, layout=in_out}; c = act_grad y, a {act=gelu}", OK},
    {"linear and act, the value before is not read", pass_fuse,
     "a = linear x, w, bias; o = act a {act=relu}", "o = linear x, w, bias {act=relu}", OK},
    {"linear and act, the value before is an output", pass_fuse,
     "o = linear x, w; a = act o {act=relu}", "a, o = linear x, w {act=relu}", OK},
    {"linear and act, a part of the value before is an output", pass_fuse,
     "h = linear x, w; a = act h {act=relu}", "a, h = linear x, w {act=relu}", OK},
    {"linear has an act already", pass_fuse,
     "a = linear x, w {act=relu}; o = act a {act=tanh}",
     "a = linear x, w {act=relu}; o = act a {act=tanh}", OK},
    {"linear and two acts: the first is taken", pass_fuse,
     "a = linear x, w; b = act a {act=relu}; c = act a {act=tanh}",
     "b, a = linear x, w {act=relu}; c = act a {act=tanh}", OK},
    {"linear and act with an addition between", pass_fuse,
     "a = linear x, w; a = accumulate x {accumulate=yes}; b = act a {act=relu}",
     "a = linear x, w; a = accumulate x {accumulate=yes}; b = act a {act=relu}", OK},
    {"linear and an act without a result", pass_fuse,
     "a = linear x, w; _ = act a {act=relu}", "a = linear x, w; _ = act a {act=relu}", OK},
    {"swiglu again and its gradient", pass_fuse,
     "a = swiglu x, y; dw = linear_grad_w a, y; b = linear_grad_x y, w; c, o = swiglu_grad b, x, y",
     "b = linear_grad_x y, w; c, o, a = swiglu_grad b, x, y; dw = linear_grad_w a, y", OK},
    {"swiglu again that others read", pass_fuse,
     "a = swiglu x, y; dw = linear_grad_w a, y; b = act a; c, o = swiglu_grad b, x, y",
     "a = swiglu x, y; dw = linear_grad_w a, y; b = act a; c, o = swiglu_grad b, x, y", OK},
    {"swiglu again, its input is written between", pass_fuse,
     "h = act x; a = swiglu h, y; dw = linear_grad_w a, y; h = accumulate x {accumulate=yes}; "
     "c, o = swiglu_grad y, h, y",
     "h = act x; a = swiglu h, y; dw = linear_grad_w a, y; h = accumulate x {accumulate=yes}; "
     "c, o = swiglu_grad y, h, y", OK},
    {"swiglu again, the gradient of the weight is read between", pass_fuse,
     "a = swiglu x, y; dw = linear_grad_w a, y; b = linear_grad_x y, dw; c, o = swiglu_grad b, x, y",
     "a = swiglu x, y; dw = linear_grad_w a, y; b = linear_grad_x y, dw; c, o = swiglu_grad b, x, y",
     OK},
    {"swiglu of other inputs", pass_fuse,
     "a = swiglu y, x; dw = linear_grad_w a, y; b = linear_grad_x y, w; c, o = swiglu_grad b, x, y",
     "a = swiglu y, x; dw = linear_grad_w a, y; b = linear_grad_x y, w; c, o = swiglu_grad b, x, y",
     OK},
    {"act gradient into the matmul", pass_fuse,
     "a = linear_grad_x y, w {layout=in_out}; c = act_grad a, x {act=gelu}",
     "c = linear_grad_x y, w, x {act=gelu, layout=in_out}", OK},
    {"act gradient of what others read", pass_fuse,
     "a = linear_grad_x y, w; c = act_grad a, x {act=gelu}; d = act a",
     "a = linear_grad_x y, w; c = act_grad a, x {act=gelu}; d = act a", OK},
    {"act gradient, the value before comes later", pass_fuse,
     "a = linear_grad_x y, w; b = act x; c = act_grad a, b {act=relu}",
     "a = linear_grad_x y, w; b = act x; c = act_grad a, b {act=relu}", OK},
    {"act gradient twice: the first is taken", pass_fuse,
     "a = linear_grad_x y, w; b = act_grad a, x {act=relu}; c = act_grad b, x {act=tanh}",
     "b = linear_grad_x y, w, x {act=relu}; c = act_grad b, x {act=tanh}", OK},
    {"matmul and add", pass_fuse,
     NORM_A "b = linear_grad_x y, w {layout=in_out}; c = add a, b",
     NORM_A "c = linear_grad_x y, w, _, a {layout=in_out}", OK},
    {"matmul and add, operands swapped, then an act gradient", pass_fuse,
     NORM_A "b = linear_grad_x y, w; c = add b, a; d = act_grad c, x {act=gelu}",
     NORM_A "d = linear_grad_x y, w, x, a {act=gelu}", OK},
    {"matmul that others read and add", pass_fuse,
     NORM_A "b = linear_grad_x y, w; c = add a, b; d = act b",
     NORM_A "b = linear_grad_x y, w; c = add a, b; d = act b", OK},
    {"matmul and add, the rest comes later", pass_fuse,
     "b = linear_grad_x y, w; a = act x; c = add a, b",
     "b = linear_grad_x y, w; a = act x; c = add a, b", OK},
    {"norm gradient and add", pass_fuse,
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd {accumulate=yes}; c = add a, b",
     NORM_A "c, dg, db = layernorm_grad y, x, gm, mean, rstd, a {accumulate=yes}", OK},
    {"norm gradient and add, operands swapped", pass_fuse,
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add b, a",
     NORM_A "c, dg, db = layernorm_grad y, x, gm, mean, rstd, a", OK},
    {"norm gradient with several readers", pass_fuse,
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add a, b; d = act b",
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add a, b; d = act b", OK},
    {"norm gradient that is an output", pass_fuse,
     NORM_A "o, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add a, o",
     NORM_A "o, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add a, o", OK},
    {"norm gradient, the rest comes later", pass_fuse,
     "b, dg, db = layernorm_grad y, x, gm, mean, rstd; a = act x; c = add a, b",
     "b, dg, db = layernorm_grad y, x, gm, mean, rstd; a = act x; c = add a, b", OK},
    {"norm gradient, the rest is added to later", pass_fuse,
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd; a = accumulate x {accumulate=yes}; "
     "c = add a, b",
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd; a = accumulate x {accumulate=yes}; "
     "c = add a, b", OK},
    {"norm gradient that has a rest already", pass_fuse,
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd, a; c = add a, b",
     NORM_A "b, dg, db = layernorm_grad y, x, gm, mean, rstd, a; c = add a, b", OK},
    {"a norm gradient twice", pass_fuse,
     "b, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add b, b",
     "b, dg, db = layernorm_grad y, x, gm, mean, rstd; c = add b, b", OK},
    {"rmsnorm gradient and add", pass_fuse,
     NORM_A "b, dg = rmsnorm_grad y, x, gm, rstd {accumulate=yes}; c = add a, b",
     NORM_A "c, dg = rmsnorm_grad y, x, gm, rstd, a {accumulate=yes}", OK},
    {"rmsnorm gradient with several readers", pass_fuse,
     NORM_A "b, dg = rmsnorm_grad y, x, gm, rstd; c = add a, b; d = act b",
     NORM_A "b, dg = rmsnorm_grad y, x, gm, rstd; c = add a, b; d = act b", OK},
    {"rmsnorm gradient that has a rest already", pass_fuse,
     NORM_A "b, dg = rmsnorm_grad y, x, gm, rstd, a; c = add a, b",
     NORM_A "b, dg = rmsnorm_grad y, x, gm, rstd, a; c = add a, b", OK},
    {"both norms' gradients in one sum: the later one adds the other", pass_fuse,
     "a, dg, db = layernorm_grad y, x, gm, mean, rstd; b, dc = rmsnorm_grad y, x, gm, rstd; "
     "c = add b, a",
     "a, dg, db = layernorm_grad y, x, gm, mean, rstd; c, dc = rmsnorm_grad y, x, gm, rstd, a",
     OK},
    {"head", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i {weight=0.5}; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {weight=0.5}",
     "l, lse6, dem, de = linear_cross_entropy_train em, e, i, s {weight=0.5}", OK},
    {"head, sums over micro-batches", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i {accumulate=after_first}; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {accumulate=after_first}",
     "l, lse6, dem, de = linear_cross_entropy_train em, e, i, s {accumulate=after_first}", OK},
    {"head whose gradient adds and whose loss does not", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {accumulate=yes}",
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {accumulate=yes}", OK},
    {"head that is frozen: only the loss adds", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i {accumulate=after_first}; "
     "dem, _ = linear_cross_entropy_grad em, e, i, lse6, s",
     "l, lse6, dem, _ = linear_cross_entropy_train em, e, i, s {accumulate=after_first}", OK},
    {"head with two weights", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {weight=0.5}",
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s {weight=0.5}", OK},
    {"head of other targets", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i6, lse6, s",
     "l, lse6 = linear_cross_entropy em, e, i; "
     "dem, de = linear_cross_entropy_grad em, e, i6, lse6, s", OK},
    {"head whose loss is read before the gradient", pass_fuse,
     "l, lse6 = linear_cross_entropy em, e, i; d = act l; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s",
     "l, lse6 = linear_cross_entropy em, e, i; d = act l; "
     "dem, de = linear_cross_entropy_grad em, e, i, lse6, s", OK},

    /* ---- precision ---- */
    {"inputs are cast once", pass_precision,
     "a = add x, x; b = act x", "x.bf16 = cast x; a = add x.bf16, x.bf16; b = act x.bf16",
     SNUG_OK, DTYPE_bf16, 1},
    {"the target of a regression is not", pass_precision,
     "loss l; a = act x; l = mse a, y", "x.f16 = cast x; a = act x.f16; l = mse a, y",
     SNUG_OK, DTYPE_f16, 1},

    /* ---- autodiff ---- */
    {"a linear layer", pass_autodiff,
     "loss l; a = linear x, w, bias; l, lse = cross_entropy a, t",
     "a = linear x, w, bias; l, lse = cross_entropy a, t; d.a = cross_entropy_grad a, t, lse, s; "
     "d.w, d.bias = linear_grad_w x, d.a", OK},
    {"dropout: the same mask again", pass_autodiff,
     "loss l; a = linear x, w; b = dropout a, s {dropout=0.5, site=3}; "
     "l, lse = cross_entropy b, t {smoothing=0.1}",
     "a = linear x, w; b = dropout a, s {dropout=0.5, site=3}; "
     "l, lse = cross_entropy b, t {smoothing=0.1}; "
     "d.b = cross_entropy_grad b, t, lse, s {smoothing=0.1}; "
     "d.a = dropout d.b, s {dropout=0.5, site=3}; d.w = linear_grad_w x, d.a", OK},
    {"a tied weight has one gradient", pass_autodiff,
     "loss l; a = linear x, w; b = linear a, w; l = mse b, y",
     "a = linear x, w; b = linear a, w; l = mse b, y; d.b = mse_grad b, y, s; "
     "d.w = linear_grad_w a, d.b; d.a = linear_grad_x d.b, w; "
     "d.w = linear_grad_w x, d.a {accumulate=yes}", OK},
    {"a tied weight beside a bias of its own", pass_autodiff,
     "loss l; a = linear x, w, bias; b = linear a, w, bias2; l = mse b, y",
     "a = linear x, w, bias; b = linear a, w, bias2; l = mse b, y; d.b = mse_grad b, y, s; "
     "d.w, d.bias2 = linear_grad_w a, d.b; d.a = linear_grad_x d.b, w; "
     "d.w.share, d.bias.share = linear_grad_w x, d.a; d.w = accumulate d.w.share {accumulate=yes}; "
     "d.bias = accumulate d.bias.share", OK},
    {"a table that is the head too", pass_autodiff,
     "loss l; em = embedding i, e, pos; l, lse6 = linear_cross_entropy em, e, i6",
     "em = embedding i, e, pos; l, lse6 = linear_cross_entropy em, e, i6; "
     "d.em, d.e = linear_cross_entropy_grad em, e, i6, lse6, s; "
     "d.e = embedding_grad i, d.em, e {accumulate=yes}; _, d.pos = embedding_grad i, d.em, e, pos",
     OK},
    {"a diamond", pass_autodiff,
     "loss l; a = linear x, w; b = act a {act=relu}; c = act a {act=tanh}; d = add b, c; "
     "l = mse d, y",
     "a = linear x, w; b = act a {act=relu}; c = act a {act=tanh}; d = add b, c; l = mse d, y; "
     "d.d = mse_grad d, y, s; d.a = act_grad d.d, a {act=tanh}; "
     "d.a.2 = act_grad d.d, a {act=relu}; d.a.3 = add d.a, d.a.2; "
     "d.w = linear_grad_w x, d.a.3", OK},
    {"an unused branch gets no gradient", pass_autodiff,
     "loss l; a = linear x, w; b = linear x, w2; l = mse a, y",
     "a = linear x, w; b = linear x, w2; l = mse a, y; d.a = mse_grad a, y, s; "
     "d.w = linear_grad_w x, d.a", OK},
    {"data needs no gradient", pass_autodiff,
     "loss l; a = act x; b = linear a, w; l = mse b, y",
     "a = act x; b = linear a, w; l = mse b, y; d.b = mse_grad b, y, s; "
     "d.w = linear_grad_w a, d.b", OK},
    {"an op without gradient is refused", pass_autodiff,
     "loss l; a = linear x, w; b = accumulate a; l = mse b, y",
     "op 1 (accumulate) has no gradient", NO},
    {"no loss is refused", pass_autodiff, "a = linear x, w", "has no loss", NO},
    {"a loss that is none is refused", pass_autodiff,
     "loss l; tensor l1 activation f32 [1]; tensor l2 activation f32 [1]; a = linear x, w; "
     "l1 = mse a, y; l2 = mse a, x; l = add l1, l2", "writes the loss but is not a loss op", NO},
    {"a loss of nothing that learns is refused", pass_autodiff,
     "loss l; a = act x; l = mse a, y", "does not depend on any parameter", NO},
    {"a name that is taken", pass_autodiff,
     "loss l; tensor d.w activation f32 [2 4]; d.w = linear x, w; l = mse d.w, y",
     "d.w = linear x, w; l = mse d.w, y; d.d.w = mse_grad d.w, y, s; "
     "d.w.2 = linear_grad_w x, d.d.w", OK},

    /* ---- accumulate ---- */
    {"one micro-batch changes nothing", pass_accumulate,
     "loss l; l = mse x, y; a = mse_grad x, y, s; dw = linear_grad_w x, a",
     "l = mse x, y; a = mse_grad x, y, s; dw = linear_grad_w x, a", OK},
    {"sums and weights", pass_accumulate,
     "loss l; l = mse x, y; a = mse_grad x, y, s {weight=0.5}; dw = linear_grad_w x, a; "
     "dw = linear_grad_w y, a {accumulate=yes}; b = accumulate a",
     "l = mse x, y {accumulate=after_first, weight=0.25}; a = mse_grad x, y, s {weight=0.125}; "
     "dw = linear_grad_w x, a {accumulate=after_first}; dw = linear_grad_w y, a {accumulate=yes}; "
     "b = accumulate a", SNUG_OK, DTYPE_f32, 4},

    /* ---- bias_sums ---- */
    {"sums with the slope", pass_bias_sums,
     SLOPE "dw, dc = linear_grad_w x, a",
     "a, dc = linear_grad_x y, w, x {act=gelu}; dw = linear_grad_w x, a", OK},
    {"sums with a norm, over micro-batches", pass_bias_sums,
     "a, dg, db = layernorm_grad y, x, gm, mean, rstd {accumulate=after_first}; b = act a; "
     "dw, dc = linear_grad_w x, a {accumulate=after_first}",
     "a, dg, db, dc = layernorm_grad y, x, gm, mean, rstd {accumulate=after_first}; b = act a; "
     "dw = linear_grad_w x, a {accumulate=after_first}", OK},
    {"a norm that adds, a bias that does not", pass_bias_sums,
     "a, dg, db = layernorm_grad y, x, gm, mean, rstd {accumulate=yes}; dw, dc = linear_grad_w x, a",
     "a, dg, db = layernorm_grad y, x, gm, mean, rstd {accumulate=yes}; dw, dc = linear_grad_w x, a", OK},
    {"a frozen norm adds as the bias does", pass_bias_sums,
     "a, _, _ = layernorm_grad y, x, gm, mean, rstd; dw, dc = linear_grad_w x, a {accumulate=yes}",
     "a, _, _, dc = layernorm_grad y, x, gm, mean, rstd {accumulate=yes}; "
     "dw = linear_grad_w x, a {accumulate=yes}", OK},
    {"a bias that is cleared in between", pass_bias_sums,
     SLOPE "dc = clear ; dw, dc = linear_grad_w x, a {accumulate=yes}",
     SLOPE "dc = clear ; dw, dc = linear_grad_w x, a {accumulate=yes}", OK},
    {"a bias that is read in between", pass_bias_sums,
     SLOPE "db = act dc; dw, dc = linear_grad_w x, a {accumulate=yes}",
     SLOPE "db = act dc; dw, dc = linear_grad_w x, a {accumulate=yes}", OK},
    {"what is summed has grown since", pass_bias_sums,
     SLOPE "a = accumulate x {accumulate=yes}; dw, dc = linear_grad_w x, a",
     SLOPE "a = accumulate x {accumulate=yes}; dw, dc = linear_grad_w x, a", OK},
    {"in every micro-batch, in the last one", pass_bias_sums,
     SLOPE "dw, dc = linear_grad_w x, a last", SLOPE "dw, dc = linear_grad_w x, a last", OK},
    {"inside the body, after it", pass_bias_sums,
     "body 1 x 2; " SLOPE "dw, dc = linear_grad_w x, a", SLOPE "dw, dc = linear_grad_w x, a", OK},
    {"one bias of two", pass_bias_sums,
     SLOPE "dw, dc = linear_grad_w x, a; dw2, db = linear_grad_w y, a",
     "a, dc = linear_grad_x y, w, x {act=gelu}; dw = linear_grad_w x, a; dw2, db = linear_grad_w y, a", OK},
    {"a bias alone", pass_bias_sums,
     SLOPE "_, dc = linear_grad_w x, a", "a, dc = linear_grad_x y, w, x {act=gelu}", OK},
    {"others do not sum", pass_bias_sums,
     "a = act_grad y, x {act=gelu}; dw, dc = linear_grad_w x, a",
     "a = act_grad y, x {act=gelu}; dw, dc = linear_grad_w x, a", OK},
    {"nor does what the backend does not want", pass_bias_sums,
     "a = linear_grad_x y, w; dw, dc = linear_grad_w x, a",
     "a = linear_grad_x y, w; dw, dc = linear_grad_w x, a", OK},
};
/* clang-format on */

static const double options[MAX_OPTIONS] = {0.9, 0.999, 1e-8};

/* As a backend does whose matmuls sum with a slope only. */
static bool sums_columns(const void *device, const struct program *prog, const struct op *op)
{
    (void)device, (void)prog;
    return op->kind != OP_linear_grad_x || op->n_in > 2;
}

static struct pass_env env_of(struct arena *scratch, struct snug_error *err)
{
    return (struct pass_env){.scratch = scratch,
                             .err = err,
                             .config.train = true,
                             .config.compute = DTYPE_f32,
                             .config.master = true,
                             .config.n_micro = 1,
                             .config.optimizer = &optimizer_adamw,
                             .config.options = options,
                             .config.state_bits = 32,
                             .config.weight_decay = 0.5,
                             .device.sums_columns = sums_columns};
}

static void parse_row(const char *name, const char *more, const char *text, struct program *prog)
{
    struct snug_error err = {0};
    struct text whole = {0};
    text_add(&whole, "program p; %s%s%s", declarations, more, text);
    if (program_parse(whole.data, prog, &err) != SNUG_OK)
        fail_msg("%s: %s", name, err.message);
    text_free(&whole);
}

static void test_rows(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(rows); i++) {
        const struct row *row = &rows[i];
        struct snug_error err = {0};
        struct arena scratch = {0};
        struct program prog;
        parse_row(row->name, gradients, row->text, &prog);
        struct pass_env env = env_of(&scratch, &err);
        env.config.compute = row->compute;
        env.config.n_micro = row->n_micro;
        enum snug_status status = row->pass(&prog, &env);
        if (status != row->status)
            fail_msg("%s: status %d (%s)", row->name, (int)status, err.message);
        if (status != SNUG_OK) {
            if (strstr(err.message, row->expected) == NULL)
                fail_msg("%s: says \"%s\" and not \"%s\"", row->name, err.message, row->expected);
        } else {
            char *ops = ops_of(&prog);
            if (strcmp(ops, row->expected) != 0)
                fail_msg("%s:\n  gives  %s\n  not    %s", row->name, ops, row->expected);
            free(ops);
        }
        program_free(&prog);
        arena_free(&scratch);
    }
}

/* ---- regularize ------------------------------------------------------------------------------ */

static const struct {
    const char *name, *text, *expected;
    double dropout, smoothing;
    enum snug_status status;
} regularize_rows[] = {
    {"after the activation of a linear layer",
     "a = linear x, w; b = act a {act=relu}; c = linear b, w; l, lse = cross_entropy c, t",
     "a = linear x, w; b = act a {act=relu}; b.dropout = dropout b, s {dropout=0.5}; "
     "c = linear b.dropout, w; l, lse = cross_entropy c, t",
     0.5, 0, SNUG_OK},
    {"every site has its number",
     "a = act x; b = linear a, w; c = act b; d = linear c, w2; h = act d; "
     "l, lse = cross_entropy h, t",
     "a = act x; b = linear a, w; c = act b; c.dropout = dropout c, s {dropout=0.5}; "
     "d = linear c.dropout, w2; h = act d; h.dropout = dropout h, s {dropout=0.5, site=1}; "
     "l, lse = cross_entropy h.dropout, t",
     0.5, 0, SNUG_OK},
    {"at the end of a branch, and not inside it",
     "a = linear x, w; b = act a {act=relu}; c = linear b, w; d = add x, c; "
     "l, lse = cross_entropy d, t",
     "a = linear x, w; b = act a {act=relu}; c = linear b, w; "
     "c.dropout = dropout c, s {dropout=0.5}; d = add x, c.dropout; l, lse = cross_entropy d, t",
     0.5, 0, SNUG_OK},
    {"after the embedding", "em = embedding i, e, pos; l, lse6 = linear_cross_entropy em, e, i6",
     "em = embedding i, e, pos; em.dropout = dropout em, s {dropout=0.25}; "
     "l, lse6 = linear_cross_entropy em.dropout, e, i6 {smoothing=0.1}",
     0.25, 0.1, SNUG_OK},
    {"smoothing alone", "a = linear x, w; l, lse = cross_entropy a, t",
     "a = linear x, w; l, lse = cross_entropy a, t {smoothing=0.1}", 0, 0.1, SNUG_OK},
    {"no place for dropout", "a = linear x, w; l, lse = cross_entropy a, t",
     "has no layer to apply it to", 0.5, 0, SNUG_UNSUPPORTED},
    {"no classes to smooth", "a = linear x, w; l = mse a, y", "needs a cross-entropy loss", 0, 0.1,
     SNUG_UNSUPPORTED},
};

static void test_regularize(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(regularize_rows); i++) {
        struct arena scratch = {0};
        struct snug_error err = {0};
        struct program prog;
        parse_row(regularize_rows[i].name, "", regularize_rows[i].text, &prog);
        struct pass_env env = env_of(&scratch, &err);
        env.config.dropout = dropout_everywhere(regularize_rows[i].dropout);
        env.config.label_smoothing = regularize_rows[i].smoothing;
        enum snug_status status = pass_regularize(&prog, &env);
        assert_int_equal(status, regularize_rows[i].status);
        char *ops = status == SNUG_OK ? ops_of(&prog) : strdup(err.message);
        if (status == SNUG_OK ? strcmp(ops, regularize_rows[i].expected) != 0
                              : strstr(ops, regularize_rows[i].expected) == NULL)
            fail_msg("%s:\n  gives  %s\n  not    %s", regularize_rows[i].name, ops,
                     regularize_rows[i].expected);
        if (status == SNUG_OK && program_verify(&prog, &err) != SNUG_OK)
            fail_msg("%s: %s", regularize_rows[i].name, err.message);
        free(ops);
        program_free(&prog);
        arena_free(&scratch);
    }
}

static const struct tensor *tensor_of(const struct program *prog, const char *name)
{
    tensor_id id = program_find(prog, name);
    if (id == TENSOR_NONE)
        fail_msg("there is no tensor \"%s\"", name);
    return &prog->tensors[id];
}

static void test_precision_types(void **state)
{
    (void)state;
    for (enum dtype compute = DTYPE_bf16; compute <= DTYPE_f16; compute++) {
        struct arena scratch = {0};
        struct snug_error err = {0};
        struct program prog;
        parse_row("types", "",
                  "loss l; a, mean, rstd = layernorm x, gm, bt; b = linear a, w; l = mse b, y",
                  &prog);
        struct pass_env env = env_of(&scratch, &err);
        env.config.compute = compute;
        assert_int_equal(pass_precision(&prog, &env), SNUG_OK);
        assert_int_equal(program_verify(&prog, &err), SNUG_OK);
        static const char *const narrow[] = {"w", "gm", "bt", "a", "b"};
        static const char *const wide[] = {"x", "y", "l", "mean", "rstd"};
        for (int i = 0; i < 5; i++) {
            assert_int_equal(tensor_of(&prog, narrow[i])->dtype, compute);
            assert_int_equal(tensor_of(&prog, wide[i])->dtype, DTYPE_f32);
        }
        assert_int_equal(tensor_of(&prog, "t")->dtype, DTYPE_i32);
        assert_int_equal(tensor_of(&prog, "s")->dtype, DTYPE_f64);
        program_free(&prog);
        arena_free(&scratch);
    }
}

/* ---- optimizer ------------------------------------------------------------------------------- */

static const struct {
    const struct optimizer *optimizer;
    enum dtype compute;
    const char *update_w, *update_bias;
    int n_states; /* for w and bias together */
} optimizer_rows[] = {
    {&optimizer_adamw, DTYPE_f32,
     "w, _, m.w, _, v.w = update d.w, s, w, _, m.w, _, v.w "
     "{rule=adamw, options=[0.9 0.999 1e-08], decay=0.5}",
     "bias, _, m.bias, _, v.bias = update d.bias, s, bias, _, m.bias, _, v.bias "
     "{rule=adamw, options=[0.9 0.999 1e-08]}",
     4},
    {&optimizer_adamw, DTYPE_bf16,
     "w, master.w, m.w, _, v.w = update d.w, s, w, master.w, m.w, _, v.w "
     "{rule=adamw, options=[0.9 0.999 1e-08], decay=0.5}",
     "bias, master.bias, m.bias, _, v.bias = update d.bias, s, bias, master.bias, m.bias, _, "
     "v.bias "
     "{rule=adamw, options=[0.9 0.999 1e-08]}",
     6},
    {&optimizer_sgd, DTYPE_f32,
     "w = update d.w, s, w {rule=sgd, options=[0.9 0.999 1e-08], decay=0.5}",
     "bias = update d.bias, s, bias {rule=sgd, options=[0.9 0.999 1e-08]}", 0},
    {&optimizer_sgd, DTYPE_f16,
     "w, master.w = update d.w, s, w, master.w {rule=sgd, options=[0.9 0.999 1e-08], decay=0.5}",
     "bias, master.bias = update d.bias, s, bias, master.bias {rule=sgd, options=[0.9 0.999 "
     "1e-08]}",
     2},
};

static void test_optimizer(void **state)
{
    (void)state;
    for (size_t i = 0; i < LENGTH(optimizer_rows); i++) {
        struct arena scratch = {0};
        struct snug_error err = {0};
        struct program prog;
        parse_row("optimizer", "", "loss l; a = linear x, w, bias; l, lse = cross_entropy a, t",
                  &prog);
        struct pass_env env = env_of(&scratch, &err);
        env.config.optimizer = optimizer_rows[i].optimizer;
        env.config.compute = optimizer_rows[i].compute;
        env.config.max_norm = 2;
        if ((env.config.compute != DTYPE_f32 && pass_precision(&prog, &env) != SNUG_OK) ||
            pass_autodiff(&prog, &env) != SNUG_OK || pass_accumulate(&prog, &env) != SNUG_OK ||
            pass_optimizer(&prog, &env) != SNUG_OK || program_verify(&prog, &err) != SNUG_OK)
            fail_msg("row %d: %s", (int)i, err.message);
        char *ops = ops_of(&prog), norm[400];
        snprintf(norm, sizeof norm,
                 "; norm.part.0 = sum_squares d.w; norm.part.1 = sum_squares d.bias; "
                 "s = grad_norm norm.parts, s {%smax_norm=2}; %s",
                 env.config.compute == DTYPE_f16 ? "dynamic_scale=1, " : "",
                 optimizer_rows[i].update_w);
        if (strstr(ops, norm) == NULL || strstr(ops, optimizer_rows[i].update_bias) == NULL)
            fail_msg("row %d: %s", (int)i, ops);
        int n_states = 0;
        for (int t = 0; t < prog.n_tensors; t++) {
            const struct tensor *tensor = &prog.tensors[t];
            bool is_state = tensor->role == ROLE_optimizer && strcmp(tensor->name, "state") != 0;
            n_states += is_state;
            if (is_state)
                assert_true(tensor->persistent && tensor->dtype == DTYPE_f32);
        }
        assert_int_equal(n_states, optimizer_rows[i].n_states);
        assert_int_equal(program_find(&prog, "m.w2"), TENSOR_NONE); /* not trained, no state */
        assert_int_equal(prog.body_end, 4 + (env.config.compute != DTYPE_f32));
        free(ops);
        program_free(&prog);
        arena_free(&scratch);
    }
}

/* ---- book ------------------------------------------------------------------------------------ */

static struct kernel_choice wants(const void *device, const struct program *prog,
                                  const struct op *op)
{
    (void)prog;
    bool is_linear = op->kind == OP_linear;
    return (struct kernel_choice){.kernel = is_linear ? 7 : 3,
                                  .workspace_bytes = is_linear ? *(const size_t *)device : 0,
                                  .no_alias = !is_linear};
}

static void test_book(void **state)
{
    (void)state;
    struct arena scratch = {0};
    struct snug_error err = {0};
    struct program prog;
    size_t bytes = 100;
    parse_row("book", "", "a = linear x, w; b = act a; o = linear b, w", &prog);
    struct pass_env env = env_of(&scratch, &err);
    assert_int_equal(pass_book(&prog, &env), SNUG_OK); /* no device: nothing is booked */
    assert_int_equal(prog.ops[0].work, TENSOR_NONE);
    assert_int_equal(prog.ops[0].kernel, 0);
    env.device.choose_kernel = wants;
    env.device.handle = &bytes;
    assert_int_equal(pass_book(&prog, &env), SNUG_OK);
    assert_int_equal(prog.ops[1].work, TENSOR_NONE);
    assert_int_equal(prog.ops[1].kernel, 3);
    assert_true(prog.ops[1].no_alias);
    for (int i = 0; i < 3; i += 2) {
        assert_int_equal(prog.ops[i].kernel, 7);
        assert_false(prog.ops[i].no_alias);
        assert_int_not_equal(prog.ops[i].work, TENSOR_NONE);
        assert_int_equal(tensor_bytes(&prog, prog.ops[i].work), 100);
        assert_int_equal(prog.tensors[prog.ops[i].work].role, ROLE_temporary);
    }
    assert_int_not_equal(prog.ops[0].work, prog.ops[2].work);
    program_free(&prog);
    arena_free(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_regularize),
        cmocka_unit_test(test_precision_types),
        cmocka_unit_test(test_optimizer),
        cmocka_unit_test(test_book),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
