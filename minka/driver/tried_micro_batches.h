// Numbers of micro-batches that were looked at, for people.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "minka/lowering/micro_batches.h"
#include "minka/planner/inter_op/micro_batch_search.h"
#include "minka/report/pipeline_comparison.h"

namespace minka {

struct TriedMicroBatches {
  int64_t num_micro_batches = 1;
  std::optional<PipelineFigures> figures;  // nullopt: it was not planned, or there is no plan
  bool chosen = false;
  std::string why_not;
};

PipelineRow RowOf(const TriedMicroBatches& tried);

// `figures`: of those that were planned.
std::vector<TriedMicroBatches> DescribeCounts(const std::vector<TriedCount>& tried,
                                              const std::map<int64_t, PipelineFigures>& figures,
                                              int64_t chosen);

// Where sums over the batch may be taken over each micro-batch
// (MicroBatchOptions::per_micro_batch), a number that was chosen says what is computed. nullopt: it
// says nothing.
std::optional<std::string> NoteOnChosenCount(const MicroBatchOptions& options, int64_t chosen,
                                             int64_t num_examples);

// Why a search has no plan where there is another way to one: none is faster than that, or all are
// estimated to take longer than `at_most_us`, or to be too large. OK: they are not.
absl::Status WhyNoneIsWanted(const std::vector<TriedCount>& tried, double at_most_us);

}  // namespace minka
