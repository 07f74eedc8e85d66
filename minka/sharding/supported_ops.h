// The document of operations and how each can be split, written from the rule table by asking it
// for one example of each operation.
#pragma once

#include <string>

namespace minka {

// Markdown: one row per way to split (operations with the same rule share one), then the operations
// without a rule. The same on every call.
std::string SupportedOperationsMarkdown();

}  // namespace minka
