// The solver by itself: of minka nothing but minka::solver.
#include "minka/solver/solve.h"

#include <cstdio>
#include <cstdlib>
#include <vector>

#include "minka/base/status.h"
#include "minka/solver/model/problem.h"

namespace {

using namespace minka;

absl::StatusOr<SolveResult> SolveExample() {
  SolverProblem problem;
  const NodeId a = problem.AddNode(std::vector<int64_t>{3, 1});  // two choices
  const NodeId b = problem.AddNode(std::vector<int64_t>{2, kForbidden, 4});
  problem.AddEdge({a, b, problem.AddTable(2, 3, std::vector<int64_t>{0, 5, 9, 4, 0, 1})});
  problem.AddUsage(a, {0, 10}, problem.AddUsageRow(std::vector<int64_t>{64, 128}));
  problem.set_usage_limit(100);
  ASSIGN_OR_RETURN(const SolveResult result, Solve(problem, {.gap = 0.01}));
  return result;
}

}  // namespace

int main() {
  const absl::StatusOr<SolveResult> result = SolveExample();
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", Message(result.status()).c_str());
    return EXIT_FAILURE;
  }
  // The memory limit forbids a's cheaper choice.
  const bool expected = result->choice == std::vector<int>{0, 0};
  std::printf("choices %s\n", expected ? "as expected" : "not as expected");
  return expected ? EXIT_SUCCESS : EXIT_FAILURE;
}
