#include "minka/solver/model/contest_reader.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "minka/base/file.h"
#include "minka/base/gzip.h"
#include "minka/base/status.h"

namespace minka {
namespace {

// What the file says, before shapes are known. Costs and cells are interned into `problem` while
// reading.
struct RawProblem {
  SolverProblem problem;
  std::optional<std::vector<TimeInterval>> intervals;
  std::optional<std::vector<RowId>> node_costs;
  std::optional<std::vector<RowId>> usages;
  std::optional<std::vector<std::pair<int64_t, int64_t>>> edge_nodes;
  std::optional<std::vector<RowId>> edge_costs;
};

// Where the parser stands in the document, for messages: "problem.nodes.costs[17]".
struct Place {
  const char* field;
  int64_t index = -1;
  std::string Text() const {
    return index < 0 ? std::string(field) : fmt::format("{}[{}]", field, index);
  }
};

class Parser {
 public:
  explicit Parser(std::string_view json)
      : begin_(json.data()), at_(json.data()), end_(json.data() + json.size()) {}

  absl::Status Document(RawProblem& raw) {
    bool seen = false;
    RETURN_IF_ERROR(Object("the file", [&](const std::string& key) -> absl::Status {
      if (key != "problem") return SkipValue();
      if (seen) return InvalidArgument("the field problem appears twice");
      seen = true;
      return Problem(raw);
    }));
    SkipSpace();
    if (at_ != end_) return Unexpected("the end of the file");
    if (!seen) return InvalidArgument("the file has no field problem");
    return absl::OkStatus();
  }

 private:
  absl::Status Problem(RawProblem& raw) {
    return Object("problem", [&](const std::string& key) -> absl::Status {
      if (key == "name") {
        ASSIGN_OR_RETURN(std::string name, String("problem.name"));
        raw.problem.set_name(std::move(name));
        return absl::OkStatus();
      }
      if (key == "usage_limit") {
        if (TakeWord("null")) return absl::OkStatus();
        ASSIGN_OR_RETURN(const int64_t limit, Integer({"problem.usage_limit"}));
        if (limit < 0) return InvalidArgument("problem.usage_limit is negative: {}", limit);
        raw.problem.set_usage_limit(limit);
        return absl::OkStatus();
      }
      if (key == "nodes") return Nodes(raw);
      if (key == "edges") return Edges(raw);
      return SkipValue();
    });
  }

  absl::Status Nodes(RawProblem& raw) {
    return Object("problem.nodes", [&](const std::string& key) -> absl::Status {
      if (key == "costs") return CostRows("problem.nodes.costs", raw, raw.node_costs);
      if (key == "usages") return UsageRows(raw);
      if (key == "intervals") return Intervals(raw);
      return SkipValue();
    });
  }

  absl::Status Edges(RawProblem& raw) {
    return Object("problem.edges", [&](const std::string& key) -> absl::Status {
      if (key == "costs") return CostRows("problem.edges.costs", raw, raw.edge_costs);
      if (key == "nodes") return EdgeNodes(raw);
      return SkipValue();
    });
  }

  absl::Status CostRows(const char* field, RawProblem& raw,
                        std::optional<std::vector<RowId>>& rows) {
    if (rows) return InvalidArgument("{} appears twice", field);
    rows.emplace();
    return Rows(field, [&](const Place& place, std::vector<int64_t>& row) -> absl::Status {
      for (int64_t& cost : row) {
        if (cost < 0) return InvalidArgument("{} has a negative cost: {}", place.Text(), cost);
        if (cost >= kContestInfinity) cost = kForbidden;
      }
      rows->push_back(raw.problem.AddTableCells(row));
      return absl::OkStatus();
    });
  }

  absl::Status UsageRows(RawProblem& raw) {
    if (raw.usages) return InvalidArgument("problem.nodes.usages appears twice");
    raw.usages.emplace();
    return Rows("problem.nodes.usages",
                [&](const Place& place, std::vector<int64_t>& row) -> absl::Status {
                  for (const int64_t bytes : row)
                    if (bytes < 0)
                      return InvalidArgument("{} has a negative usage: {}", place.Text(), bytes);
                  raw.usages->push_back(raw.problem.AddUsageRow(row));
                  return absl::OkStatus();
                });
  }

  absl::Status Intervals(RawProblem& raw) {
    if (raw.intervals) return InvalidArgument("problem.nodes.intervals appears twice");
    raw.intervals.emplace();
    return Rows("problem.nodes.intervals",
                [&](const Place& place, std::vector<int64_t>& row) -> absl::Status {
                  if (row.size() != 2)
                    return InvalidArgument("{} has {} entries, not a begin and an end",
                                           place.Text(), row.size());
                  raw.intervals->push_back({row[0], row[1]});
                  return absl::OkStatus();
                });
  }

  absl::Status EdgeNodes(RawProblem& raw) {
    if (raw.edge_nodes) return InvalidArgument("problem.edges.nodes appears twice");
    raw.edge_nodes.emplace();
    return Rows(
        "problem.edges.nodes", [&](const Place& place, std::vector<int64_t>& row) -> absl::Status {
          if (row.size() != 2)
            return InvalidArgument("{} joins {} nodes; only edges of two nodes are supported",
                                   place.Text(), row.size());
          raw.edge_nodes->emplace_back(row[0], row[1]);
          return absl::OkStatus();
        });
  }

  // A list of lists of integers; consume(place, row) for each.
  template <typename Consume>
  absl::Status Rows(const char* field, Consume consume) {
    Place place{field};
    RETURN_IF_ERROR(Expect('[', place, "a list of lists"));
    if (Take(']')) return absl::OkStatus();
    do {
      ++place.index;
      RETURN_IF_ERROR(IntegerList(place));
      RETURN_IF_ERROR(consume(place, row_));
    } while (Take(','));
    return Expect(']', place, "',' or ']' after the list");
  }

  absl::Status IntegerList(const Place& place) {
    row_.clear();
    RETURN_IF_ERROR(Expect('[', place, "a list of integers"));
    if (Take(']')) return absl::OkStatus();
    do {
      int64_t value = 0;
      if (!FastInteger(value)) {
        ASSIGN_OR_RETURN(value, Integer(place));
      }
      row_.push_back(value);
    } while (Take(','));
    return Expect(']', place, "',' or ']'");
  }

  // Up to 18 digits, the common case; leaves the position alone where it does not apply.
  bool FastInteger(int64_t& value) {
    SkipSpace();
    const char* p = at_;
    const char* const stop = end_ - p > 19 ? p + 19 : end_;
    uint64_t sum = 0;
    while (p < stop && static_cast<unsigned char>(*p - '0') < 10) sum = sum * 10 + (*p++ - '0');
    const auto digits = p - at_;
    if (digits == 0 || digits > 18 || p == end_ || (*p != ',' && *p != ']')) return false;
    if (*at_ == '0' && digits > 1) return false;
    value = static_cast<int64_t>(sum);
    at_ = p;
    return true;
  }

  absl::StatusOr<int64_t> Integer(const Place& place) {
    SkipSpace();
    const bool negative = at_ < end_ && *at_ == '-';
    const char* p = at_ + (negative ? 1 : 0);
    const char* const first = p;
    __int128 sum = 0;
    for (; p < end_ && static_cast<unsigned char>(*p - '0') < 10; ++p) {
      sum = sum * 10 + (*p - '0');
      if (sum > INT64_MAX)
        return InvalidArgument("{}: a number is too large for 64 bits at byte {}", place.Text(),
                               at_ - begin_);
    }
    if (p == first || (*first == '0' && p - first > 1))
      return InvalidArgument("{} is not an integer at byte {}", place.Text(), at_ - begin_);
    if (p < end_ && (*p == '.' || *p == 'e' || *p == 'E'))
      return InvalidArgument("{}: only integers are allowed, at byte {}", place.Text(),
                             at_ - begin_);
    at_ = p;
    return static_cast<int64_t>(negative ? -sum : sum);
  }

  template <typename Field>
  absl::Status Object(const char* what, Field field) {
    RETURN_IF_ERROR(Expect('{', {what}, "an object"));
    if (Take('}')) return absl::OkStatus();
    do {
      ASSIGN_OR_RETURN(const std::string key, String(what));
      RETURN_IF_ERROR(Expect(':', {what}, "':' after a key"));
      RETURN_IF_ERROR(field(key));
    } while (Take(','));
    return Expect('}', {what}, "',' or '}'");
  }

  // Escapes are kept as written: keys and names are only compared and printed.
  absl::StatusOr<std::string> String(const char* what) {
    RETURN_IF_ERROR(Expect('"', {what}, "a string"));
    const char* const first = at_;
    while (at_ < end_ && *at_ != '"') at_ += *at_ == '\\' ? 2 : 1;
    if (at_ >= end_) {
      at_ = end_;
      return InvalidArgument("{}: a string does not end", what);
    }
    return std::string(first, at_++);
  }

  // Any value of a field that the format does not know.
  absl::Status SkipValue() {
    std::string open;  // closing brackets still owed
    do {
      SkipSpace();
      if (at_ == end_) return Unexpected("a value");
      const char c = *at_;
      if (c == '"') {
        RETURN_IF_ERROR(String("an unknown field").status());
      } else if (c == '[' || c == '{') {
        ++at_;
        open.push_back(c == '[' ? ']' : '}');
      } else if (c == ']' || c == '}') {
        if (open.empty() || open.back() != c) return Unexpected("a value");
        ++at_;
        open.pop_back();
      } else if ((c == ',' || c == ':') && !open.empty()) {
        ++at_;
      } else {
        const char* const first = at_;
        while (at_ < end_ && std::strchr(",:]}\" \t\r\n[{", *at_) == nullptr) ++at_;
        if (at_ == first) return Unexpected("a value");
      }
    } while (!open.empty());
    return absl::OkStatus();
  }

  void SkipSpace() {
    while (at_ < end_ && (*at_ == ' ' || *at_ == '\n' || *at_ == '\t' || *at_ == '\r')) ++at_;
  }
  bool Take(char c) {
    SkipSpace();
    if (at_ == end_ || *at_ != c) return false;
    ++at_;
    return true;
  }
  bool TakeWord(std::string_view word) {
    SkipSpace();
    if (!std::string_view(at_, end_ - at_).starts_with(word)) return false;
    at_ += word.size();
    return true;
  }
  absl::Status Expect(char c, const Place& place, const char* what) {
    if (Take(c)) return absl::OkStatus();
    if (at_ == end_)
      return InvalidArgument("{}: the file ends where {} should be", place.Text(), what);
    return InvalidArgument("{}: expected {} at byte {}", place.Text(), what, at_ - begin_);
  }
  absl::Status Unexpected(const char* what) const {
    return InvalidArgument("not JSON: expected {} at byte {}", what, at_ - begin_);
  }

  const char* begin_;
  const char* at_;
  const char* end_;
  std::vector<int64_t> row_;
};

absl::Status AddNodes(RawProblem& raw) {
  if (!raw.node_costs) return InvalidArgument("problem.nodes.costs is missing");
  if (!raw.intervals) return InvalidArgument("problem.nodes.intervals is missing");
  if (!raw.usages) return InvalidArgument("problem.nodes.usages is missing");
  const size_t n = raw.node_costs->size();
  if (n == 0)
    return InvalidArgument("problem.nodes.costs is empty: a problem needs at least one node");
  if (raw.intervals->size() != n)
    return InvalidArgument("problem.nodes.intervals has {} entries for {} nodes",
                           raw.intervals->size(), n);
  if (raw.usages->size() != n)
    return InvalidArgument("problem.nodes.usages has {} entries for {} nodes", raw.usages->size(),
                           n);
  SolverProblem& problem = raw.problem;
  std::vector<int64_t> costs;
  for (size_t i = 0; i < n; ++i) {
    const std::span<const int64_t> row = problem.table_cells((*raw.node_costs)[i]);
    costs.assign(row.begin(), row.end());
    if (costs.empty()) return InvalidArgument("problem.nodes.costs[{}] is empty", i);
    const size_t num_usages = problem.usage_row((*raw.usages)[i]).size();
    if (num_usages != costs.size())
      return InvalidArgument("problem.nodes.usages[{}] has {} entries for {} costs", i, num_usages,
                             costs.size());
    const NodeId node = problem.AddNode(costs);
    const TimeInterval interval = (*raw.intervals)[i];
    if (interval.end > interval.begin) {
      if (interval.begin < 0)
        return InvalidArgument("problem.nodes.intervals[{}] begins before 0: {}", i,
                               interval.begin);
      problem.AddUsage(node, interval, (*raw.usages)[i]);
    }
  }
  return absl::OkStatus();
}

absl::Status AddEdges(RawProblem& raw) {
  if (raw.edge_nodes.has_value() != raw.edge_costs.has_value())
    return InvalidArgument("problem.edges.{} is missing", raw.edge_nodes ? "costs" : "nodes");
  if (!raw.edge_nodes) return InvalidArgument("problem.edges is missing its nodes and costs");
  if (raw.edge_nodes->size() != raw.edge_costs->size())
    return InvalidArgument("problem.edges.costs has {} entries for {} edges",
                           raw.edge_costs->size(), raw.edge_nodes->size());
  SolverProblem& problem = raw.problem;
  for (size_t e = 0; e < raw.edge_nodes->size(); ++e) {
    const auto [a, b] = (*raw.edge_nodes)[e];
    for (const int64_t node : {a, b})
      if (node < 0 || node >= problem.num_nodes())
        return InvalidArgument("problem.edges.nodes[{}] joins node {}, but there are {} nodes", e,
                               node, problem.num_nodes());
    if (a == b) return InvalidArgument("problem.edges.nodes[{}] joins node {} to itself", e, a);
    const RowId cells = (*raw.edge_costs)[e];
    const int32_t rows = problem.num_choices(static_cast<NodeId>(a));
    const int32_t columns = problem.num_choices(static_cast<NodeId>(b));
    const size_t num_cells = problem.table_cells(cells).size();
    if (num_cells != static_cast<size_t>(rows) * columns)
      return InvalidArgument("problem.edges.costs[{}] has {} entries, not {} x {}", e, num_cells,
                             rows, columns);
    problem.AddEdge(
        {static_cast<NodeId>(a), static_cast<NodeId>(b), problem.AddTable(rows, columns, cells)});
  }
  return absl::OkStatus();
}

absl::StatusOr<SolverProblem> Build(RawProblem raw) {
  RETURN_IF_ERROR(AddNodes(raw));
  RETURN_IF_ERROR(AddEdges(raw));
  RETURN_IF_ERROR(raw.problem.Check());
  return std::move(raw.problem);
}

}  // namespace

absl::StatusOr<SolverProblem> ParseContestProblem(std::string_view json) {
  RawProblem raw;
  RETURN_IF_ERROR(Parser(json).Document(raw));
  return Build(std::move(raw));
}

absl::StatusOr<SolverProblem> ReadContestProblem(const std::string& path) {
  RawProblem raw;
  {
    ASSIGN_OR_RETURN(std::string bytes, ReadFile(path));
    absl::StatusOr<std::string> json = Gunzip(std::move(bytes));
    if (!json.ok()) return WithContext(json.status(), path);
    const absl::Status parsed = Parser(*json).Document(raw);
    if (!parsed.ok()) return WithContext(parsed, path);
  }
  absl::StatusOr<SolverProblem> problem = Build(std::move(raw));
  if (!problem.ok()) return WithContext(problem.status(), path);
  return problem;
}

std::string ContestSolution(std::span<const int32_t> choice) {
  return fmt::format("[{}]", fmt::join(choice, ","));
}

}  // namespace minka
