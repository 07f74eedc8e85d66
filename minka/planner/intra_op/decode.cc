#include "minka/planner/intra_op/decode.h"

#include <algorithm>
#include <limits>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "minka/analysis/trip_count.h"
#include "minka/plan/combine.h"
#include "minka/planner/intra_op/op_costs.h"
#include "minka/planner/intra_op/reshard_prices.h"

namespace minka {
namespace {

class Decoder {
 public:
  Decoder(const StepFacts& facts, const ChoiceTables& tables, const Formulation& formulation,
          const ReshardCosts& reshards, const Mesh& mesh, const CostModel& cost,
          std::span<const int32_t> choice, const DecodeChoicesOptions& options)
      : facts_(facts),
        tables_(tables),
        formulation_(formulation),
        reshards_(reshards),
        mesh_(mesh),
        cost_(cost),
        choice_(choice),
        options_(options) {}

  StagePlan Run() {
    const Computation& entry = facts_.entry;
    plan_.mesh = mesh_;
    plan_.ops.resize(entry.num_instructions());
    plan_.result_versions.assign(entry.results.size(), 0);
    OpCosts op_costs(facts_, tables_, mesh_, cost_);
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      OpPlan& op = plan_.ops[id];
      const int32_t chosen = choice_[formulation_.operations[id]];
      op.strategy = choices(id).strategies[chosen];
      op.called = PlanCalledBy(facts_.step.module, entry, id, choices(id).rule, op.strategy, mesh_,
                               cost_.called_prices());
      op.operand_versions.assign(entry.instructions[id].operands.size(), 0);
      op.phase = facts_.phases[id];
      op.cost_us = op_costs.Costs(id)[chosen];
    }
    for (InstructionId id = 0; id < entry.num_instructions(); ++id) {
      for (int result = 0; result < static_cast<int>(entry.instructions[id].results.size());
           ++result) {
        DecodeValue({id, result});
      }
    }
    SortReshards();
    const std::vector<bool> read_early = ReadEarly();
    CombineCollectives(read_early);
    CombineGathersAndScatters(read_early);
    const std::vector<PlannedCollective> collectives = ListCollectives(facts_.step.module, plan_);
    ShareCollectives(collectives);
    ChargeWaits(collectives);
    plan_.step_time_us = StepTime();
    return std::move(plan_);
  }

 private:
  const OpChoices& choices(InstructionId id) const {
    return tables_.op_choices[tables_.of_instruction[id]];
  }
  const Sharding& ChosenAt(PortId port, NodeId node) const {
    return tables_.shardings[tables_.ports[port][choice_[node]]];
  }
  const Sharding& ParameterSharding(int parameter) const {
    const InstructionId id = facts_.entry.parameters[parameter];
    return ChosenAt(choices(id).results[0], formulation_.operations[id]);
  }

  struct Version {
    int number = 0;
    Sharding sharding;
  };

  void DecodeValue(Value value) {
    const NodeId producer = formulation_.operations[value.instruction];
    const ValueLayout& layout = formulation_.layouts[value.instruction][value.result];
    made_.clear();
    Version kept = {0, ChosenAt(choices(value.instruction).results[value.result], producer)};
    if (layout.kept != producer) {
      kept = Make(value, kept, ChosenAt(formulation_.ports[layout.kept], layout.kept),
                  /*group=*/0, BehindProducer(value), facts_.IsReadLate(value), /*isolated=*/false);
    }
    for (const User& user : UsersOf(facts_, value)) {
      if (user.state_parameter < 0) DecodeUse(value, user, layout, kept);
    }
    DecodeResults(value, kept);
  }

  void DecodeUse(Value value, const User& user, const ValueLayout& layout, const Version& kept) {
    const int group = facts_.ViewGroup(user.instruction);
    Version source = kept;
    if (const NodeId view = layout.views[group]; view >= 0) {
      source = Make(value, kept, ChosenAt(formulation_.ports[view], view), group,
                    InFrontOf(user.instruction, value), ViewIsReadLate(value, group),
                    /*isolated=*/true);
    }
    for (int operand : user.operands) {
      const Sharding& wanted = ChosenAt(choices(user.instruction).operands[operand],
                                        formulation_.operations[user.instruction]);
      plan_.ops[user.instruction].operand_versions[operand] =
          Make(value, source, wanted, group, InFrontOf(user.instruction, value),
               facts_.leads_to_apply_only[user.instruction], /*isolated=*/false)
              .number;
    }
  }

  void DecodeResults(Value value, const Version& kept) {
    const Computation& entry = facts_.entry;
    for (size_t result = 0; result < entry.results.size(); ++result) {
      if (entry.results[result] != value) continue;
      const int parameter = StateParameter(static_cast<int>(result));
      const Sharding& wanted = parameter < 0 ? kept.sharding : ParameterSharding(parameter);
      plan_.result_versions[result] =
          Make(value, kept, wanted, StepFacts::kNumViewGroups - 1,
               InFrontOf(entry.num_instructions(), value), /*is_late=*/true, /*isolated=*/false)
              .number;
    }
  }

  bool ViewIsReadLate(Value value, int group) const {
    return std::ranges::all_of(facts_.uses.uses(value), [&](const Use& use) {
      return facts_.ViewGroup(use.user) != group || facts_.leads_to_apply_only[use.user];
    });
  }

  int StateParameter(int result) const {
    const auto& parameters = facts_.step.parameters;
    const auto found = std::ranges::find(parameters, result, &ParameterInfo::state_result);
    return found == parameters.end() ? -1 : static_cast<int>(found - parameters.begin());
  }

  // Where a version is made, and how often per step.
  struct Place {
    InstructionId before = 0;
    int64_t runs = 1;
  };
  Place BehindProducer(Value value) const {
    const MicroLoop& loop = facts_.loop;
    const InstructionId next = value.instruction + 1;
    return {.before = loop.LeavesLoop(value.instruction) ? std::max(next, loop.end) : next,
            .runs = loop.IsTransient(value.instruction) ? loop.num_micro_batches : 1};
  }
  Place InFrontOf(InstructionId reader, Value value) const {
    if (reader == facts_.entry.num_instructions()) return {.before = reader};
    const int64_t runs = facts_.RunsOfReshard(value, reader, formulation_.hoists_reshards);
    const bool reads_into_loop =
        !facts_.loop.IsTransient(value.instruction) && facts_.loop.IsInside(reader);
    return {.before = reads_into_loop && runs == 1 ? facts_.loop.begin : reader, .runs = runs};
  }

  // Does another group of readers have a version that begins with the same step?
  bool BeginsLikeAnotherGroups(int from, int group, const ReshardStep& step) const {
    return std::ranges::any_of(made_, [&](const auto& made) {
      const auto& [its_from, its_group, its_to] = made.first;
      return its_from == from && its_group != group &&
             plan_.reshards[made.second - 1].steps.front() == step;
    });
  }

  // The version of `value` with sharding `to`, made from `from` unless this group of readers
  // already has it. What another group makes of `from` was paid for, too: without a barrier the
  // compiler would keep what begins alike, as it would keep one for all micro-batches.
  Version Make(Value value, const Version& from, const Sharding& to, int group, Place place,
               bool is_late, bool isolated) {
    if (from.sharding == to) return from;
    const std::tuple key(from.number, group, to);
    auto found = made_.find(key);
    if (found == made_.end()) {
      ReshardPath path = reshards_.Path(facts_.entry.shape(value), from.sharding, to,
                                        {facts_.ClassOf(value), is_late});
      isolated = isolated || BeginsLikeAnotherGroups(from.number, group, path.steps.front());
      const bool is_of_loop = facts_.loop.IsTransient(value.instruction);
      isolated = isolated || (place.runs > 1 && !is_of_loop);
      plan_.reshards.push_back({.value = value,
                                .from_version = from.number,
                                .from = from.sharding,
                                .to = to,
                                .steps = std::move(path.steps),
                                .before = place.before,
                                .isolated = isolated,
                                .cost_us = static_cast<double>(place.runs) * path.cost});
      found = made_.emplace(key, static_cast<int>(plan_.reshards.size())).first;
    }
    return {found->second, to};
  }

  void SortReshards() {
    std::vector<int> order(plan_.reshards.size());
    std::iota(order.begin(), order.end(), 0);
    std::ranges::stable_sort(order, {}, [&](int i) { return plan_.reshards[i].before; });
    std::vector<int> new_version(order.size() + 1, 0);
    std::vector<Reshard> sorted;
    for (int old : order) {
      sorted.push_back(std::move(plan_.reshards[old]));
      new_version[old + 1] = static_cast<int>(sorted.size());
    }
    for (Reshard& reshard : sorted) reshard.from_version = new_version[reshard.from_version];
    for (OpPlan& op : plan_.ops) {
      for (int& version : op.operand_versions) version = new_version[version];
    }
    for (int& version : plan_.result_versions) version = new_version[version];
    plan_.reshards = std::move(sorted);
  }

  // Collectives that carry gradients into the apply phase, or new state out of it, of equal kind,
  // axes and type. The value may be cut before and behind one, and nothing else.
  //
  // All-reduces elsewhere are combined, too, where they pay for latency most of all, as the two
  // sums of a batch norm: with each other, and with such gradients that do not depend on them. The
  // search pays for each of these by itself.
  void CombineCollectives(const std::vector<bool>& read_early) {
    struct Group {
      std::vector<int> late, small, early;  // small ones are late, early ones are small
    };
    std::map<std::tuple<LoopPart, ReshardKind, AxisList, ElementType, bool>, Group> groups;
    for (size_t i = 0; i < plan_.reshards.size(); ++i) {
      const Reshard& reshard = plan_.reshards[i];
      const std::optional<int> only = OnlyCollective(reshard);
      if (!only) continue;
      const ReshardStep& step = reshard.steps[*only];
      const bool is_early = read_early[i + 1], is_small = IsMostlyLatency(reshard, step);
      if (is_early && !is_small) continue;
      if (step.kind == ReshardKind::kAllToAll) continue;
      if (options_.save_memory && step.kind != ReshardKind::kAllReduce) continue;
      const bool leaves_step = reshard.before == facts_.entry.num_instructions();
      Group& group = groups[{PartOf(facts_.loop, reshard), step.kind, step.axes,
                             facts_.entry.shape(reshard.value).type, leaves_step}];
      (is_early ? group.early : is_small ? group.small : group.late).push_back(static_cast<int>(i));
    }
    for (auto& [key, group] : groups) {
      std::vector<int>& with = group.early.empty() ? group.late : group.early;
      with.insert(with.end(), group.small.begin(), group.small.end());
      for (std::vector<int>* members : {&group.late, &group.early}) {
        std::ranges::sort(*members);
        MakeGroup(*members);
      }
    }
  }

  // By version: does what leads to more than the apply phase read it?
  std::vector<bool> ReadEarly() const {
    std::vector<bool> read_early(plan_.reshards.size() + 1, false);
    const std::vector<bool>& is_late = facts_.leads_to_apply_only;
    for (InstructionId id = 0; id < facts_.entry.num_instructions(); ++id) {
      if (is_late[id]) continue;
      for (int version : plan_.ops[id].operand_versions) read_early[version] = true;
    }
    for (const Reshard& reshard : plan_.reshards) {
      if (reshard.before < facts_.entry.num_instructions() && !is_late[reshard.before]) {
        read_early[reshard.from_version] = true;
      }
    }
    return read_early;
  }

  bool IsMostlyLatency(const Reshard& reshard, const ReshardStep& step) const {
    const auto runs = static_cast<double>(RunsOf(reshard));
    return step.kind == ReshardKind::kAllReduce && cost_.shares_latency() &&
           SharesLatency(cost_, WorkOfCollective(reshard)) &&
           reshard.cost_us <= 2 * runs * cost_.Latency(step.kind, step.axes.axes());
  }

  void MakeGroup(const std::vector<int>& members) {
    if (members.size() < 2) return;
    for (int member : members) plan_.reshards[member].combine_group = num_groups_;
    ++num_groups_;
  }

  // Gathers of state, and where memory is saved scatters of gradients, in the order in which they
  // are made, as many in one instruction as the bytes of what is packed allow.
  void CombineGathersAndScatters(const std::vector<bool>& read_early) {
    struct Open {
      std::vector<int> members;
      int64_t bytes = 0;
    };
    std::map<std::tuple<LoopPart, Phase, ReshardKind, AxisList, ElementType>, Open> open;
    for (size_t i = 0; i < plan_.reshards.size(); ++i) {
      const Reshard& reshard = plan_.reshards[i];
      const bool is_gather = IsGatherOfState(reshard);
      const bool is_scatter = options_.save_memory && !read_early[i + 1] && IsScatter(reshard);
      if (reshard.combine_group >= 0 || (!is_gather && !is_scatter)) continue;
      const PackedBytes most = is_gather ? MostGathered() : kMostOfSmallOnes;
      const int64_t bytes = WorkOfCollective(reshard).local_bytes;
      if (bytes > most.of_one) continue;
      const ReshardStep& step = reshard.steps[*OnlyCollective(reshard)];
      Open& list = open[{PartOf(facts_.loop, reshard), facts_.phases[reshard.before], step.kind,
                         step.axes, facts_.entry.shape(reshard.value).type}];
      if (list.bytes + bytes > most.of_all) {
        MakeGroup(list.members);
        list = {};
      }
      list.members.push_back(static_cast<int>(i));
      list.bytes += bytes;
    }
    for (const auto& [key, list] : open) MakeGroup(list.members);
  }

  struct PackedBytes {
    int64_t of_one = 0, of_all = 0;
  };
  static constexpr PackedBytes kMostOfSmallOnes = {.of_one = kMostPackedSavingMemory,
                                                   .of_all = kMostPackedBytes};

  PackedBytes MostGathered() const {
    const int64_t most = options_.combine_gathers_bytes;
    if (most > 0) return {.of_one = most, .of_all = most};
    return cost_.shares_latency() ? kMostOfSmallOnes : PackedBytes();
  }

  bool IsGatherOfState(const Reshard& reshard) const {
    return reshard.before < facts_.entry.num_instructions() && reshard.steps.size() == 1 &&
           reshard.steps[0].kind == ReshardKind::kAllGather &&
           facts_.ClassOf(reshard.value) == TensorClass::kState;
  }

  bool IsScatter(const Reshard& reshard) const {
    const std::optional<int> only = OnlyCollective(reshard);
    return reshard.before < facts_.entry.num_instructions() && only &&
           reshard.steps[*only].kind == ReshardKind::kReduceScatter;
  }

  // Reshards of one collective pay what each takes in it, and the latency together.
  void ShareCollectives(std::span<const PlannedCollective> collectives) {
    if (!cost_.shares_latency()) return;
    for (const PlannedCollective& collective : collectives) {
      if (collective.reshards.size() < 2) continue;
      const Reshard& first = plan_.reshards[collective.reshards[0]];
      const ReshardKind kind = first.steps[*OnlyCollective(first)].kind;
      const auto shares = [&](int member) {
        return SharesLatency(cost_, WorkOfCollective(plan_.reshards[member]));
      };
      const auto num_sharing = std::ranges::count_if(collective.reshards, shares);
      if (num_sharing < 2) continue;
      const double latency =
          GroupLatency(cost_, kind, collective.axes) / static_cast<double>(num_sharing);
      for (const int member : collective.reshards) {
        if (!shares(member)) continue;
        const StepWork work = WorkOfCollective(plan_.reshards[member]);
        const double alone = cost_.Collective(work, collective.type);
        const double together =
            PriceInGroup(cost_, work, mesh_.size(collective.axes), collective.type) + latency;
        plan_.reshards[member].cost_us += static_cast<double>(collective.runs) * (together - alone);
      }
    }
  }

  // The work of one run since devices last waited.
  struct PhaseOfWork {
    const CostModel& cost;
    double us = 0;

    // What devices wait at so many collectives behind equal parts of it, with which it ends.
    double End(double times) { return times * cost.Wait(std::exchange(us, 0) / times); }
  };

  // What devices wait at collectives of all of them behind longer phases of work. The search knows
  // no phases: they are known here, in the order of the instructions.
  void ChargeWaits(std::span<const PlannedCollective> collectives) {
    if (cost_.Wait(std::numeric_limits<double>::infinity()) == 0) return;
    // Collectives of all devices, by what they run in front of.
    std::vector<std::vector<const PlannedCollective*>> meetings(plan_.ops.size() + 1);
    std::vector<bool> waits(plan_.reshards.size());
    for (const PlannedCollective& collective : collectives) {
      if (collective.reshards.empty() || !TakesAllDevices(collective.axes)) continue;
      meetings[TimeOfCollective(plan_, collective.reshards)].push_back(&collective);
      for (const int member : collective.reshards) waits[member] = true;
    }
    PhaseOfWork phase = {cost_};
    size_t next = 0;  // reshard
    for (InstructionId id = 0; id <= facts_.entry.num_instructions(); ++id) {
      for (; next < plan_.reshards.size() && plan_.reshards[next].before == id; ++next) {
        const Reshard& reshard = plan_.reshards[next];
        if (!waits[next]) phase.us += reshard.cost_us / static_cast<double>(RunsOf(reshard));
      }
      for (const PlannedCollective* collective : meetings[id]) {
        const double each_us = phase.End(1) * static_cast<double>(collective->runs) /
                               static_cast<double>(collective->reshards.size());
        for (const int member : collective->reshards) plan_.reshards[member].cost_us += each_us;
      }
      if (id < facts_.entry.num_instructions()) ChargeWaitsIn(id, phase);
    }
  }

  // Where loops within the operation wait, they do so behind equal parts of its work, its other
  // collectives included; of branches all are counted.
  void ChargeWaitsIn(InstructionId id, PhaseOfWork& phase) {
    OpPlan& op = plan_.ops[id];
    const auto runs = static_cast<double>(facts_.loop.RunsOf(id));
    phase.us += op.cost_us / runs;
    const Module& module = facts_.step.module;
    const Trips trips = [&](const Computation& computation, InstructionId loop) {
      return static_cast<double>(TripCount(module, computation, loop).value_or(1));
    };
    double times = 0;
    for (const OperationCollective& own : CollectivesOf(module, facts_.entry, id, choices(id).rule,
                                                        op.strategy, op.called, mesh_, trips)) {
      if (TakesAllDevices(own.work.axes)) times += own.times;
    }
    // Those of several results run one behind the other.
    if (!IsControlFlow(facts_.entry.instructions[id].opcode)) times = std::min(times, 1.0);
    if (times > 0) op.cost_us += runs * phase.End(times);
  }

  int64_t RunsOf(const Reshard& reshard) const {
    return PartOf(facts_.loop, reshard) == LoopPart::kInside ? facts_.loop.num_micro_batches : 1;
  }

  bool TakesAllDevices(AxisSet axes) const { return mesh_.size(axes) == mesh_.num_devices(); }

  double StepTime() const {
    double total = 0;
    for (const OpPlan& op : plan_.ops) total += op.cost_us;
    for (const Reshard& reshard : plan_.reshards) total += reshard.cost_us;
    return total;
  }

  // Of its only collective.
  StepWork WorkOfCollective(const Reshard& reshard) const {
    const int step = *OnlyCollective(reshard);
    const Sharding& before = step == 0 ? reshard.from : reshard.steps[step - 1].result;
    return WorkOfStep(facts_.entry.shape(reshard.value), before, reshard.steps[step], mesh_);
  }

  const StepFacts& facts_;
  const ChoiceTables& tables_;
  const Formulation& formulation_;
  const ReshardCosts& reshards_;
  const Mesh& mesh_;
  const CostModel& cost_;
  const std::span<const int32_t> choice_;
  const DecodeChoicesOptions options_;
  StagePlan plan_;
  int num_groups_ = 0;
  std::map<std::tuple<int, int, Sharding>, int> made_;  // of the value being decoded
};

}  // namespace

StagePlan DecodeChoices(const StepFacts& facts, const ChoiceTables& tables,
                        const Formulation& formulation, const ReshardCosts& reshards,
                        const Mesh& mesh, const CostModel& cost, std::span<const int32_t> choice,
                        const DecodeChoicesOptions& options) {
  return Decoder(facts, tables, formulation, reshards, mesh, cost, choice, options).Run();
}

}  // namespace minka
