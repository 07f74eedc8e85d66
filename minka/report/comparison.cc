#include "minka/report/comparison.h"

#include "fmt/format.h"
#include "minka/report/format.h"
#include "minka/report/table.h"

namespace minka {
namespace {

std::string Collectives(const Plan& plan) {
  int64_t count = 0, bytes = 0;
  for (const auto& [kind, number] : plan.collectives) count += number;
  for (const auto& [kind, number] : plan.collective_bytes) bytes += number;
  return count == 0 ? "none" : fmt::format("{}, {}", count, FormatBytes(bytes));
}

}  // namespace

std::string ComparisonTable(const std::vector<ComparisonRow>& rows) {
  Table table({{""},
               {"method"},
               {"mesh"},
               {"step time", Align::kRight},
               {"peak memory", Align::kRight},
               {"state", Align::kRight},
               {"collectives", Align::kRight},
               {"gap", Align::kRight},
               {"fits"}});
  for (const ComparisonRow& row : rows) {
    if (row.plan == nullptr) {
      table.Add({"", row.method, row.mesh, "-", "-", "-", "-", "-", "no: " + row.why_not});
      continue;
    }
    const Plan& plan = *row.plan;
    table.Add({row.chosen ? "*" : "", row.method, row.mesh, FormatTime(plan.step_time_us),
               FormatBytes(plan.peak_memory_bytes), FormatBytes(plan.state_bytes_per_device),
               Collectives(plan), plan.gap ? FormatPercent(*plan.gap) : "-",
               row.fits ? "yes" : "no"});
  }
  return table.ToString();
}

}  // namespace minka
