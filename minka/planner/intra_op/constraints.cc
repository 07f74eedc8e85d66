#include "minka/planner/intra_op/constraints.h"

#include "fmt/ranges.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// With more to its message.
Refusal Extended(const Refusal& refusal, const std::string& more) {
  return {.why = MakeError(refusal.why.code(), Message(refusal) + more),
          .smallest_limit_bytes = refusal.smallest_limit_bytes};
}

}  // namespace

std::vector<Constraint> ConstraintsOf(const SearchOptions& options) {
  std::vector<Constraint> constraints;
  for (size_t i = 0; i < options.pins.size(); ++i) {
    Constraint pin = {.flag = fmt::format("--pin {}", options.pins[i]), .without = options};
    pin.without.pins.erase(pin.without.pins.begin() + static_cast<std::ptrdiff_t>(i));
    constraints.push_back(std::move(pin));
  }
  const auto add_limit = [&]<typename T>(const std::string& flag, T SearchLimits::* limit) {
    if (options.limits.*limit == T()) return;
    constraints.push_back({.flag = flag, .without = options});
    constraints.back().without.limits.*limit = T();
  };
  add_limit("--no-all-gather", &SearchLimits::no_all_gather);
  add_limit("--no-all-to-all", &SearchLimits::no_all_to_all);
  add_limit(fmt::format("--batch-axis {}", options.limits.batch_axis), &SearchLimits::batch_axis);
  add_limit("--no-sequence-split", &SearchLimits::no_sequence_split);
  add_limit("--no-replicated-parameters", &SearchLimits::no_replicated_parameters);
  return constraints;
}

Refusal NameCulprits(const Refusal& refusal, const SearchOptions& options,
                     const TrySearch& search) {
  const bool lacks_room = refusal.smallest_limit_bytes.has_value();
  if (!lacks_room && refusal.why.code() != absl::StatusCode::kFailedPrecondition) return refusal;
  const std::vector<Constraint> constraints = ConstraintsOf(options);
  std::vector<std::string> all, culprits;
  SearchOptions none = options;
  none.pins.clear();
  none.limits = {.prefer_reduce_scatter = options.limits.prefer_reduce_scatter,
                 .combine_gathers_bytes = options.limits.combine_gathers_bytes};
  for (const Constraint& constraint : constraints) {
    all.push_back(constraint.flag);
    if (search(constraint.without).ok()) culprits.push_back(constraint.flag);
  }
  const char* const found = lacks_room ? "one fits" : "there is one";
  if (!culprits.empty()) {
    return Extended(
        refusal, fmt::format("; {} without {}: drop {}", found, fmt::join(culprits, " or without "),
                             culprits.size() == 1 ? "it" : "one of them"));
  }
  if (constraints.size() < 2 || !search(none).ok()) return refusal;
  return Extended(refusal, fmt::format("; {} without {}: drop more than one of them", found,
                                       fmt::join(all, ", ")));
}

}  // namespace minka
