// Which reshards of a stage run together in one collective instruction.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "minka/ir/module.h"
#include "minka/plan/plan.h"

namespace minka {

// Position of the only step that communicates; nullopt: none does, or several do.
std::optional<int> OnlyCollective(const Reshard& reshard);

// Which reshards some operation, result or other live reshard reads; what is not live is not
// lowered.
std::vector<bool> LiveReshards(const Module& module, const StagePlan& stage);

// Every live reshard in exactly one list, ascending; the members of a list run as one collective.
// Members of a combine_group stay together as far as no member depends on another one (also through
// other groups); what would close a cycle starts a list of its own. all-to-all is never combined.
std::vector<std::vector<int>> LegalCombineGroups(const Module& module, const StagePlan& stage);

// When reshards that are one collective run: for the first that needs one, once all are there.
InstructionId TimeOfCollective(const StagePlan& stage, std::span<const int> members);

}  // namespace minka
