// One model on one cluster, planned by minka's search, as published, and by the best of a grid.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "benchmarks/planning/quality/published_solutions.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/pipeline.h"
#include "minka/driver/plan_step.h"
#include "minka/frontend/nn.h"

namespace minka {

// One mesh is searched, too, where it has at most so many devices; more are seldom fastest.
inline constexpr int kMostDevicesOfOneMesh = 8;
inline constexpr int kMostStagesOfGrid = 16;

struct Figures {
  double step_time_us = 0;
  int64_t memory_bytes = 0;
  bool fits = false;
  std::string how;
};

class ComparedPlans {
 public:
  // `look_up` of tokens; not given: the model's default.
  static absl::StatusOr<ComparedPlans> Create(const PublishedSolution& solution,
                                              std::optional<LookUp> look_up = std::nullopt);

  // By any number of stages, whatever is fastest.
  absl::StatusOr<Figures> Minka() const;
  // Without the limit where it does not fit: what it would take, if it did.
  absl::StatusOr<Figures> Published() const;
  // Of a GPT: nothing between its layers is split along sequences, which products there cannot be,
  // and memory is not limited, since gradients add up in half precision there.
  absl::StatusOr<Figures> PublishedAsItRan() const;
  // The fastest that fits as it is, as such systems have it; where none does, the fastest that does
  // with state split further.
  absl::StatusOr<Figures> Uniform() const;

 private:
  ComparedPlans(const PublishedSolution& solution, Cluster cluster, SplitStep split);

  int num_devices() const { return cluster_.num_devices(); }
  PlanRequest Request(std::optional<PipelineOptions> pipeline) const;
  PlanRequest PublishedRequest() const;
  absl::StatusOr<Figures> Plan(const PlanRequest& request) const;
  absl::StatusOr<Figures> OneMesh() const;
  std::optional<Figures> BestOfGrid(bool limited) const;
  // Gradients are reduced and the optimizer's state is split over data parallel devices where that
  // moves no more bytes; each layer is recomputed, or none.
  void TakeBetter(int stages, int rows, int columns, bool limited,
                  std::optional<Figures>& best) const;

  PublishedSolution solution_;
  Cluster cluster_;
  SplitStep split_;  // models stack nothing
};

}  // namespace minka
