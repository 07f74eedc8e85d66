#include "minka/base/json.h"

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "minka/base/status.h"

namespace minka {
namespace {

using Json = nlohmann::ordered_json;

// Watches a parse; the first fault is kept, and what lies too deep is dropped while it is read.
class Watch {
 public:
  bool Admit(int depth, Json::parse_event_t event, const Json& parsed) {
    if (depth >= kMaxJsonDepth) {
      fault_ = fmt::format("nests more than {} deep", kMaxJsonDepth);
      return false;
    }
    const auto level = static_cast<size_t>(depth);
    if (event == Json::parse_event_t::object_start) {
      keys_.resize(level + 1);
      keys_[level].clear();
    } else if (event == Json::parse_event_t::key) {
      // A key's depth is that of the values of its object, one below the object's own.
      const auto& key = parsed.get_ref<const std::string&>();
      if (!keys_[level - 1].insert(key).second) fault_ = fmt::format("gives '{}' twice", key);
    }
    return true;
  }
  const std::string& fault() const { return fault_; }

 private:
  std::vector<std::set<std::string>> keys_;  // per depth: of the object that is open there
  std::string fault_;
};

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text) {
  Watch watch;
  try {
    Json json = Json::parse(text, [&](int depth, Json::parse_event_t event, const Json& parsed) {
      return watch.Admit(depth, event, parsed);
    });
    if (!watch.fault().empty()) return InvalidArgument("JSON that {}", watch.fault());
    return json;
  } catch (const Json::exception&
               error) {  // not only parse_error: numbers beyond a double have their own
    return InvalidArgument("not JSON: {}", error.what());
  }
}

}  // namespace minka
