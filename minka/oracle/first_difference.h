// Where the run of a plan leaves that of one device: the first operation, in the order of the
// prepared step, whose result the oracle refuses although it accepts those of its operands.
//
// A decision (decisions.h) whose input lies within rounding of its threshold may go either way, and
// everything behind it then differs although nothing is wrong. Such an operation is turned over on
// one device, too: its elements become an input, with the values that the plan has. The plan is
// right if one device agrees with it once all of them are. So it goes with a few elements of a
// quotient or root of what is zero but for rounding (IsUnstableAtZero). Where no operation differs
// with its values kept, the plan's own program may have decided otherwise: then elements that lie
// within rounding of their threshold are turned over one by one, nearest first.
//
// Both programs run with intermediate values as more results, in as many groups as
// `max_bytes_at_once` asks for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/ir/step.h"
#include "minka/oracle/kept_values.h"
#include "minka/oracle/oracle.h"
#include "minka/runtime/pipeline/session.h"
#include "minka/runtime/pjrt/client.h"

namespace minka {

struct FirstDifference {
  // One sentence; "" where every operation agrees once `turned` are turned over.
  std::string text;
  // The decisions and quotients that were turned over on one device, one sentence each.
  std::vector<std::string> turned;
  // The plan's results against one device after that.
  OracleReport report;
};

struct SearchedRun {
  // Prepared as the plan's, but for micro-batches: operations on the whole batch, as one device
  // runs them.
  const Step& prepared;
  SearchedPlan plan;
  const pjrt::Client& client;  // one device
  Session& session;            // the meshes of the plan
  const StepInputs& inputs;
  int num_steps = 1;
  StepRunner& runner;          // of the plan's program as it is
  const MeshResults& results;  // that it gave
};

// Of micro-batches, the values of all are put together. Unimplemented where each of them stands for
// the whole batch (MicroBatchOptions::per_micro_batch), so that one device has no such values.
absl::StatusOr<FirstDifference> FindFirstDifference(const SearchedRun& run,
                                                    int64_t max_bytes_at_once = int64_t{1} << 28);

}  // namespace minka
