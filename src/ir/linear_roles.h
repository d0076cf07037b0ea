/*
 * linear_roles.h -- the part that each linear layer plays in its block: the projection to q, the
 * up-projection of the MLP, and so on.
 *
 * A role is found from the ops around the layer, so it does not depend on the names of a family.
 */
#ifndef SNUG_IR_LINEAR_ROLES_H
#define SNUG_IR_LINEAR_ROLES_H

#include "base/arena.h"
#include "ir/program.h"

#define LINEAR_ROLE_LIST(X)                                                   \
    X(q)                                                                      \
    X(k)                                                                      \
    X(v)                                                                      \
    X(qkv)  /* q, k and v packed in one matrix, as in GPT-2 */                \
    X(o)    /* after attention */                                             \
    X(gate) /* the input of swiglu that goes through the sigmoid */           \
    X(up)   /* before an activation function, or the other input of swiglu */ \
    X(down) /* after an activation function or swiglu */

enum linear_role {
    LINEAR_other, /* a patch embedding, a classifier, an LM head; not a linear op */
#define ROLE_VALUE(name) LINEAR_##name,
    LINEAR_ROLE_LIST(ROLE_VALUE)
#undef ROLE_VALUE
        LINEAR_ROLE_COUNT
};

const char *linear_role_name(enum linear_role role); /* "gate"; NULL for other */

/* Sets *roles to the role of every op of a forward program, in the arena. */
enum snug_status linear_roles_find(const struct program *prog, struct arena *arena,
                                   enum linear_role **roles, struct snug_error *err);

#endif
