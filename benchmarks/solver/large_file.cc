#include "large_file.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <utility>
#include <vector>

#include "fmt/format.h"
#include "fmt/ranges.h"
#include "minka/base/status.h"
#include "minka/solver/model/contest_reader.h"
#include "minka/solver/model/random.h"

namespace minka {
namespace {

constexpr int32_t kFarthest = 50;
constexpr int32_t kForbiddenPercent = 30;
constexpr int64_t kSmallestCost = 100'000'000'000;

class Writer {
 public:
  Writer(const LargeFileSize& size, std::ostream& out) : size_(size), out_(out), random_(1) {
    for (int32_t n = 0; n < size.num_nodes; ++n)
      num_choices_.push_back(size.mean_choices - 3 + random_.Below(7));
    for (int32_t e = 0; e < size.num_edges; ++e) {
      const int32_t a = random_.Below(size.num_nodes - 1);
      edges_.emplace_back(a, std::min(size.num_nodes - 1, a + 1 + random_.Below(kFarthest)));
    }
  }

  void Run() {
    out_ << R"({"problem":{"name":"large","usage_limit":1000000000000,"nodes":{"intervals":)";
    List(size_.num_nodes, [&](int32_t n) { Print("[{},{}]", n, n + 1 + random_.Below(2000)); });
    out_ << R"(,"costs":)";
    List(size_.num_nodes, [&](int32_t n) { Numbers(num_choices_[n], 1'000'000'000); });
    out_ << R"(,"usages":)";
    List(size_.num_nodes, [&](int32_t n) { Numbers(num_choices_[n], 1'000'000); });
    out_ << R"(},"edges":{"nodes":)";
    List(size_.num_edges, [&](int32_t e) { Print("[{},{}]", edges_[e].first, edges_[e].second); });
    out_ << R"(,"costs":)";
    List(size_.num_edges, [&](int32_t e) {
      List(num_choices_[edges_[e].first] * num_choices_[edges_[e].second],
           [&](int32_t) { Print("{}", Cell()); });
    });
    out_ << "}}}";
  }

 private:
  template <typename... Args>
  void Print(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::ostreambuf_iterator<char>(out_), format, std::forward<Args>(args)...);
  }

  template <typename Each>
  void List(int32_t count, Each each) {
    out_ << '[';
    for (int32_t i = 0; i < count; ++i) {
      if (i > 0) out_ << ',';
      each(i);
    }
    out_ << ']';
  }

  void Numbers(int32_t count, int32_t below) {
    List(count, [&](int32_t) { Print("{}", random_.Below(below)); });
  }

  int64_t Cell() {
    if (random_.Below(100) < kForbiddenPercent) return kContestInfinity;
    return kSmallestCost + int64_t{random_.Below(1'000'000'000)} * 900;
  }

  const LargeFileSize size_;
  std::ostream& out_;
  Random random_;
  std::vector<int32_t> num_choices_;
  std::vector<std::pair<int32_t, int32_t>> edges_;
};

}  // namespace

absl::Status WriteLargeFile(const LargeFileSize& size, const std::string& path) {
  std::ofstream out(path, std::ios::binary);
  Writer(size, out).Run();
  out.flush();
  if (!out) return Unavailable("cannot write {}", path);
  return absl::OkStatus();
}

}  // namespace minka
