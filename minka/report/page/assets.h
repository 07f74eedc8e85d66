// The texts that a report page is made of; EmbedText.cmake writes them into a source.
#pragma once

#include <string_view>

namespace minka::page {

extern const std::string_view kD3;      // the library that draws
extern const std::string_view kStyle;   // report.css
extern const std::string_view kScript;  // report.js

}  // namespace minka::page
