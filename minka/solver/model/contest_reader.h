// Reads and writes the file format of the IOPDDL contest (ASPLOS / EuroSys 2025,
// github.com/google/iopddl).
//
//   {"problem": {"name": "example", "usage_limit": 50,
//     "nodes": {"intervals": [[30, 70], ...], "costs": [[15, 20], ...], "usages": [[10, 5], ...]},
//     "edges": {"nodes": [[0, 1], ...], "costs": [[30, 40, 50, 60], ...]}}}
//
// Keys come in any order. Costs of 10^18 and more mean forbidden. All numbers are integers.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "minka/solver/model/problem.h"

namespace minka {

inline constexpr int64_t kContestInfinity = 1'000'000'000'000'000'000;

// A checked problem. The error names the node, edge or field. About 200 MB/s.
absl::StatusOr<SolverProblem> ParseContestProblem(std::string_view json);

// The same from a file, gzipped or not; "-" is standard input.
absl::StatusOr<SolverProblem> ReadContestProblem(const std::string& path);

// "[0,0,2,1,0]"
std::string ContestSolution(std::span<const int32_t> choice);

}  // namespace minka
