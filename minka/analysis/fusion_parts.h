// What partitions into fusion groups have in common, whoever compiles. For fusion_groups.cc and
// cuda_fusions.cc alone; groups are named by one of their instructions until they are numbered.
#pragma once

#include <set>
#include <vector>

#include "minka/analysis/fusion_groups.h"
#include "minka/ir/module.h"

namespace minka {

// Does the instruction make its elements, each by itself, of its operands'? Then it may be computed
// inside its reader's loop. Compilers differ in reductions and gathers.
bool MakesElementByElement(const Instruction& instruction);

// A reshape that stands alone is a view of what is in memory, and belongs to that.
void JoinViews(const Computation& computation, const std::vector<bool>& repeated,
               std::vector<InstructionId>& group);

// Numbers groups in the order of their first instruction, in `partition`: those that instructions
// are in, and those that copies of them stand in.
void NumberGroups(const std::vector<InstructionId>& group,
                  const std::vector<std::set<InstructionId>>& copies, FusionPartition& partition);

}  // namespace minka
