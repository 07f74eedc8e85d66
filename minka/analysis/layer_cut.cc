#include "minka/analysis/layer_cut.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "minka/analysis/minimum_cut.h"

namespace minka {
namespace {

class Solver {
 public:
  explicit Solver(const LayerCutProblem& problem)
      : problem_(problem),
        lowest_(problem.num_variables, 0),
        highest_(problem.num_variables, problem.num_layers - 1),
        vertices_(problem.num_variables),
        shared_of_(problem.num_variables),
        orders_of_(problem.num_variables),
        unlimited_(1) {
    for (int i = 0; i < static_cast<int>(problem.shared.size()); ++i) {
      unlimited_ += problem.shared[i].bytes;
      for (const int variable : problem.shared[i].variables) shared_of_[variable].push_back(i);
    }
    for (int i = 0; i < static_cast<int>(problem.bounds.size()); ++i) {
      std::tie(lowest_[i], highest_[i]) = problem.bounds[i];
    }
    for (int i = 0; i < static_cast<int>(problem.orders.size()); ++i) {
      orders_of_[problem.orders[i].before].push_back(i);
      orders_of_[problem.orders[i].after].push_back(i);
    }
  }

  std::vector<int> Run() && {
    std::vector<int> all(problem_.num_variables);
    std::iota(all.begin(), all.end(), 0);
    Split(all, 0, problem_.num_layers - 1);
    return std::move(lowest_);
  }

 private:
  // Decides between `first` and `last`, which is where all of `variables` stand, by halves.
  void Split(const std::vector<int>& variables, int first, int last) {
    if (first == last || variables.empty()) return;
    const int threshold = first + (last - first + 1) / 2;
    std::vector<int> below, above;
    const MinimumCut cut = CutAt(threshold, variables);
    for (const int variable : variables) {
      const bool is_above =
          highest_[variable] >= threshold &&
          (lowest_[variable] >= threshold || cut.IsWithSource(vertices_[variable]));
      if (is_above) {
        lowest_[variable] = std::max(lowest_[variable], threshold);
      } else {
        highest_[variable] = std::min(highest_[variable], threshold - 1);
      }
      (is_above ? above : below).push_back(variable);
    }
    Split(below, first, threshold - 1);
    Split(above, threshold, last);
  }

  // Those that stand at or above the threshold are with the source.
  MinimumCut CutAt(int threshold, const std::vector<int>& variables) {
    MinimumCut cut;
    for (const int variable : variables) vertices_[variable] = cut.AddVertex();
    const auto vertex = [&](int variable) {
      if (lowest_[variable] >= threshold) return cut.source();
      return highest_[variable] < threshold ? cut.sink() : vertices_[variable];
    };
    for (const int i : Touched(variables, orders_of_)) {
      const LayerCutProblem::Order& order = problem_.orders[i];
      cut.AddEdge(vertex(order.after), vertex(order.before), unlimited_);
    }
    for (const int i : Touched(variables, shared_of_)) {
      const LayerCutProblem::Shared& shared = problem_.shared[i];
      // With the source where any holder is, and where all holders are; paid where these differ.
      const MinimumCut::Vertex any = cut.AddVertex(), all = cut.AddVertex();
      cut.AddEdge(any, all, shared.bytes);
      const auto hold = [&](MinimumCut::Vertex holder) {
        cut.AddEdge(holder, any, unlimited_);
        cut.AddEdge(all, holder, unlimited_);
      };
      for (const int variable : shared.variables) hold(vertex(variable));
      if (shared.highest >= threshold) hold(cut.source());
      if (shared.lowest >= 0 && shared.lowest < threshold) hold(cut.sink());
    }
    cut.Solve();
    return cut;
  }

  static std::vector<int> Touched(const std::vector<int>& variables,
                                  const std::vector<std::vector<int>>& of) {
    std::vector<int> touched;
    for (const int variable : variables) {
      touched.insert(touched.end(), of[variable].begin(), of[variable].end());
    }
    std::ranges::sort(touched);
    touched.erase(std::ranges::unique(touched).begin(), touched.end());
    return touched;
  }

  const LayerCutProblem& problem_;
  std::vector<int> lowest_, highest_;         // by variable: as far as it is decided
  std::vector<MinimumCut::Vertex> vertices_;  // by variable, of the cut at hand
  std::vector<std::vector<int>> shared_of_, orders_of_;
  int64_t unlimited_;
};

}  // namespace

std::vector<int> SolveLayerCut(const LayerCutProblem& problem) { return Solver(problem).Run(); }

}  // namespace minka
