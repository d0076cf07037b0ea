/*
 * stand_in.cc -- enqueues the work of an emulated library on an emulated stream.
 */
#include "cuda/emulation/stand_in.h"

#include <vector>

#include "cuda/emulation/emulate.h"

void stand_in_submit(void *stream, void (*run)(const void *arguments), const void *arguments,
                     size_t bytes)
{
    const unsigned char *from = (const unsigned char *)arguments;
    std::vector<unsigned char> copy(from, from + bytes);
    emulated_submit((cudaStream_t)stream, [=] { run(copy.data()); });
}
