#include "minka/schedule/generate.h"

#include <algorithm>
#include <string>

#include "fmt/ranges.h"
#include "minka/base/check.h"
#include "minka/base/status.h"
#include "minka/schedule/kinds.h"

namespace minka {

std::vector<Task> OfAllMicroBatches(TaskKind kind, int stage, const PipelineShape& shape) {
  std::vector<Task> tasks;
  for (int i = 0; i < shape.num_micro_batches; ++i) tasks.push_back({kind, stage, i});
  return tasks;
}

std::vector<Task> Alternate(const std::vector<Task>& forward, const std::vector<Task>& backward,
                            int num_first) {
  const size_t first = std::min(forward.size(), static_cast<size_t>(num_first));
  std::vector<Task> tasks(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(first));
  for (size_t i = 0; i < backward.size(); ++i) {
    if (first + i < forward.size()) tasks.push_back(forward[first + i]);
    tasks.push_back(backward[i]);
  }
  return tasks;
}

absl::Status NeedsOneStagePerMesh(const PipelineShape& shape) {
  if (shape.stages_per_mesh == 1) return absl::OkStatus();
  return InvalidArgument("{} stages on each mesh: only interleaved-1f1b has more than one",
                         shape.stages_per_mesh);
}

std::span<const ScheduleKind> ScheduleKinds() {
  static const ScheduleKind kinds[] = {kGpipe,       kOneFOneB,     kEagerOneFOneB,
                                       kInterleaved, kZeroBubbleH1, kInference};
  return kinds;
}

namespace {

// Null: there is none of that name.
const ScheduleKind* KindNamed(std::string_view name) {
  const auto kind = std::ranges::find(ScheduleKinds(), name, &ScheduleKind::name);
  return kind == ScheduleKinds().end() ? nullptr : &*kind;
}

// Not OK: there is no such kind, or it cannot have the shape.
absl::StatusOr<const ScheduleKind*> KindFor(std::string_view name, const PipelineShape& shape) {
  const ScheduleKind* const kind = KindNamed(name);
  if (kind == nullptr) {
    std::vector<std::string_view> names;
    for (const ScheduleKind& known : ScheduleKinds()) names.push_back(known.name);
    return InvalidArgument("unknown schedule \"{}\"; known: {}", name, fmt::join(names, ", "));
  }
  if (shape.num_meshes < 1 || shape.num_micro_batches < 1 || shape.stages_per_mesh < 1) {
    return InvalidArgument(
        "a schedule of {} meshes with {} stages each and {} micro-batches; there is at least one "
        "of each",
        shape.num_meshes, shape.stages_per_mesh, shape.num_micro_batches);
  }
  if (const absl::Status checked = kind->check(shape); !checked.ok()) {
    return WithContext(checked, "schedule " + std::string(name));
  }
  return kind;
}

// Of so few micro-batches that every mesh has just begun and repeats what it does, before it comes
// to the end; a multiple of the meshes, which some schedules need.
PipelineShape ShortShape(PipelineShape shape) {
  const int least = 2 * shape.num_meshes * shape.stages_per_mesh + 2;
  shape.num_micro_batches = (least / shape.num_meshes + 1) * shape.num_meshes;
  return shape;
}

}  // namespace

bool Trains(std::string_view schedule) {
  const ScheduleKind* const kind = KindNamed(schedule);
  return kind != nullptr && kind->trains;
}

bool SplitsBackward(std::string_view schedule) {
  const ScheduleKind* const kind = KindNamed(schedule);
  return kind != nullptr && kind->splits_backward;
}

absl::StatusOr<Schedule> MakeSchedule(std::string_view name, const PipelineShape& shape) {
  ASSIGN_OR_RETURN(const ScheduleKind* const kind, KindFor(name, shape));
  Schedule schedule{.name = std::string(name),
                    .shape = shape,
                    .trains = kind->trains,
                    .splits_backward = kind->splits_backward};
  for (int mesh = 0; mesh < shape.num_meshes; ++mesh) {
    std::vector<Task>& tasks = schedule.tasks.emplace_back(kind->tasks_of_mesh(shape, mesh));
    for (int stage = mesh; kind->trains && stage < schedule.num_stages();
         stage += shape.num_meshes) {
      tasks.push_back({TaskKind::kApply, stage});
    }
  }
  const absl::Status verified = Verify(schedule);
  MINKA_CHECK(verified.ok(), "{}", Message(verified));
  return schedule;
}

absl::StatusOr<std::vector<MicroBatchesHeld>> MostHeldBy(std::string_view name,
                                                         const PipelineShape& shape) {
  RETURN_IF_ERROR(KindFor(name, shape).status());
  const PipelineShape shorter = ShortShape(shape);
  PipelineShape longer = shorter;
  longer.num_micro_batches += shape.num_meshes;
  if (longer.num_micro_batches < shape.num_micro_batches) {
    ASSIGN_OR_RETURN(const Schedule of_shorter, MakeSchedule(name, shorter));
    ASSIGN_OR_RETURN(const Schedule of_longer, MakeSchedule(name, longer));
    std::vector<MicroBatchesHeld> held = MostHeld(of_shorter);
    const std::vector<MicroBatchesHeld> more = MostHeld(of_longer);
    if (held == more) return held;
    // Each micro-batch more is held by every mesh: they hold all.
    const bool holds_all = std::ranges::equal(held, more, [&](const auto& few, const auto& many) {
      return few.put_off == many.put_off &&
             few.in_flight == shorter.num_micro_batches * shape.stages_per_mesh &&
             many.in_flight == longer.num_micro_batches * shape.stages_per_mesh;
    });
    if (holds_all) {
      for (MicroBatchesHeld& of_mesh : held)
        of_mesh.in_flight = shape.num_micro_batches * shape.stages_per_mesh;
      return held;
    }
  }
  ASSIGN_OR_RETURN(const Schedule schedule, MakeSchedule(name, shape));
  return MostHeld(schedule);
}

Schedule ShortestAlike(const Schedule& schedule) {
  const PipelineShape shape = ShortShape(schedule.shape);
  if (shape.num_micro_batches >= schedule.shape.num_micro_batches) return schedule;
  absl::StatusOr<Schedule> shorter = MakeSchedule(schedule.name, shape);
  if (!shorter.ok() || MostHeld(*shorter) != MostHeld(schedule)) return schedule;
  return *std::move(shorter);
}

}  // namespace minka
