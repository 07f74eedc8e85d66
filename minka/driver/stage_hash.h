// When two stages are the same problem.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "minka/ir/step.h"

namespace minka {

// Equal for stages of equal layers: what a search looks at, without pins. Unsigned constants that
// are computed with count by type and shape alone: layers whose random masks differ are equal.
uint64_t StageHash(const Step& step);

// Equal also where equal operations stand in another order, or parameters and results do: their
// plans have other numbers, take as long and hold about as much. Operations are told apart by what
// they are computed from and what is computed from them, not more.
uint64_t OrderFreeStageHash(const Step& step);

// Parts of such hashes, for others that compare what searches look at.
//
// By instruction: a constant with a value that no search looks at, such as what tells the random
// masks of one layer from those of another.
std::vector<bool> FindFreeValues(const Computation& entry);
std::string PartText(const StepPart& part);  // but for the layer
// What the parameter means, but for the result that it becomes.
std::string MeaningText(const ParameterInfo& info);
// By the machine's byte order: these hashes are compared within a process.
uint64_t HashOf(std::span<const uint64_t> numbers);
uint64_t HashOf(std::initializer_list<uint64_t> numbers);

}  // namespace minka
