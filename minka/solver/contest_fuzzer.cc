// Any bytes either give an error or a sound problem; small ones are solved, and the answer must
// hold.
#include <cstddef>
#include <cstdint>
#include <string>

#include "minka/base/check.h"
#include "minka/base/gzip.h"
#include "minka/solver/model/contest_reader.h"
#include "minka/solver/model/evaluate.h"
#include "minka/solver/solve.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::StatusOr<std::string> text =
      minka::Gunzip(std::string(reinterpret_cast<const char*>(data), size));
  if (!text.ok()) return 0;
  const absl::StatusOr<minka::SolverProblem> problem = minka::ParseContestProblem(*text);
  if (!problem.ok()) return 0;
  const absl::StatusOr<minka::SolveResult> result = minka::Solve(*problem, {.work_limit = 100'000});
  MINKA_CHECK(result.ok());
  if (result->status == minka::SolveStatus::kInfeasible || result->choice.empty()) return 0;
  const minka::Evaluation evaluation = *minka::Evaluate(*problem, result->choice);
  MINKA_CHECK(evaluation.feasible() && evaluation.cost == result->cost &&
              result->lower_bound <= result->cost);
  return 0;
}
