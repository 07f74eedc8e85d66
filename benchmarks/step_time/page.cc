#include "benchmarks/step_time/page.h"

#include <algorithm>
#include <vector>

#include "fmt/format.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kGoal = 1.0, kLimit = 1.05;

constexpr char kIntroduction[] =
    "# Step time against JAX\n\n"
    "Made by `step_time_benchmark --update`. A training step on 8 CPU devices, by minka's searched "
    "plan (every\n"
    "mesh shape, costs measured by `minka profile`) and by JAX, in turns; medians of warm steps in "
    "ms, each from\n"
    "the launch until all devices are done, the batch on the devices before. *predicted* is that "
    "of the plan,\n"
    "*ratio* is minka over the fastest of JAX (bold), median of the rounds; the goal is 1.0, the "
    "limit 1.05.\n"
    "`--compare` fails where a ratio is more than 10 % larger. JAX has the threads that it takes "
    "by itself; where it\n"
    "waits for itself with these until it aborts, more, which make its steps slower: these rows "
    "say so.\n";

struct Section {
  const char* model;
  const char* title;
  const char* text;
};

constexpr Section kSections[] = {
    {"flax", "flax",
     "Modules of `../prediction/make_modules.py`, which users of JAX would write. minka gets the "
     "module that JAX\n"
     "lowers from the step, JAX the same function under plain `jax.jit`: *data* splits the batch "
     "over the devices\n"
     "and keeps the state whole, *fsdp* also splits each tensor of the state along its largest "
     "dimension that 8\n"
     "divides. Same inputs, state donated; the losses of the first step are compared."},
    {"gpt", "GPT",
     "Layers x hidden size; batch 16, sequence 128, 8 heads, vocabulary 256, AdamW; JAX's copy and "
     "its shardings\n"
     "are written by hand, here and below."},
    {"moe", "Mixture of experts",
     "As GPT, with 8 experts in layers 0 and 2 instead of the feed-forward network: GShard's "
     "gating to two of them,\n"
     "groups of 128 tokens."},
    {"wresnet", "Wide-ResNet",
     "Blocks of each stage x width, blocks twice as wide inside, batch normalisation over the "
     "whole batch, Nesterov\n"
     "momentum. 1-1-1: 64 images of 16 x 16, a stem of 3 x 3; 1-1-1-1: 32 images of 64 x 64, a "
     "stem of 7 x 7 by\n"
     "stride 2 and pooling, 1024 classes."},
};

double Ratio(const Json& row) { return row["ratio"].get<double>(); }

std::string Milliseconds(const Json& row, const std::string& field) {
  return row.contains(field) ? fmt::format("{:.1f}", row[field].get<double>()) : "";
}

// A column for each sharding of the rows, which have them all.
std::string Table(const std::vector<Json>& rows) {
  const bool has_data =
      std::ranges::any_of(rows, [](const Json& row) { return row.contains("minka_data_ms"); });
  std::string header = "| | minka | plan | predicted |";
  std::string rule = "|---|---|---|---|";
  const auto add_column = [&](const std::string& title) {
    header += fmt::format(" {} |", title);
    rule += "---|";
  };
  if (has_data) add_column("minka data");
  for (const auto& time : rows.front()["jax_ms"].items()) add_column("JAX " + time.key());
  add_column("ratio");
  std::string text = header + "\n" + rule + "\n";
  for (const Json& row : rows) {
    const std::string threads =
        row.contains("jax_threads")
            ? fmt::format(" (JAX in {} threads)", row["jax_threads"].get<int>())
            : "";
    text += fmt::format("| {}{} | {} | {} on {} | {} |", row["size"].get<std::string>(), threads,
                        Milliseconds(row, "minka_ms"), row["method"].get<std::string>(),
                        row["mesh"].get<std::string>(), Milliseconds(row, "predicted_ms"));
    if (has_data) text += fmt::format(" {} |", Milliseconds(row, "minka_data_ms"));
    for (const auto& time : row["jax_ms"].items()) {
      const char* const mark = row["fastest_jax"] == time.key() ? "**" : "";
      text += fmt::format(" {}{:.1f}{} |", mark, time.value().get<double>(), mark);
    }
    text += fmt::format(" {:.2f} |\n", Ratio(row));
  }
  return text;
}

}  // namespace

std::string Summary(const Json& rows) {
  const auto count = [&](double limit) {
    return std::ranges::count_if(rows, [&](const Json& row) { return Ratio(row) <= limit; });
  };
  const auto worst = std::ranges::max_element(rows, {}, [](const Json& row) { return Ratio(row); });
  return fmt::format(
      "{} programs: {} at most as slow as the fastest of JAX, {} within 5 %, worst {}: {:.2f}",
      rows.size(), count(kGoal), count(kLimit), (*worst)["name"].get<std::string>(), Ratio(*worst));
}

std::string Page(const Json& rows) {
  std::string text = kIntroduction;
  for (const Section& section : kSections) {
    std::vector<Json> of_section;
    std::ranges::copy_if(rows, std::back_inserter(of_section),
                         [&](const Json& row) { return row["model"] == section.model; });
    if (of_section.empty()) continue;
    text += fmt::format("\n## {}\n\n{}\n\n{}\n{}.\n", section.title, section.text,
                        Table(of_section), Summary(Json(of_section)));
  }
  return text;
}

}  // namespace minka
