// A local program for who counts devices as partitions.
#pragma once

#include <cstdint>

#include "minka/base/platform.h"
#include "minka/ir/module.h"

namespace minka {

// `local` counts its devices as replicas (SpmdProgram). The same program for one replica of
// `num_devices` partitions, which is how JAX compiles: every collective has a channel of its own
// and groups of partition ids, none of them left out, and replica-id is partition-id. XLA's
// partitioner, which such a program passes through, takes all-reduces of one operand only: those of
// several become as many where the platform sums operands apart in any case (SumsOperandsApart),
// else they reduce them one behind the other in one array. Aliases are dropped: the program is
// called there.
Module OverPartitions(const Module& local, int64_t num_devices, Platform platform);

}  // namespace minka
