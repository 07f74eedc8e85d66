#include "minka/base/process.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "fmt/format.h"

namespace minka {
namespace {

constexpr int kShownLines = 8;

std::string LastLines(std::string_view messages) {
  while (!messages.empty() && messages.back() == '\n') messages.remove_suffix(1);
  size_t begin = messages.size();
  for (int i = 0; i < kShownLines && begin != std::string_view::npos && begin > 0; ++i) {
    begin = messages.rfind('\n', begin - 1);
  }
  const bool is_all = begin == std::string_view::npos || begin == 0;
  return std::string(messages.substr(is_all ? 0 : begin + 1));
}

}  // namespace

std::string NameOfSignal(int signal) {
  const char* const name = ::sigabbrev_np(signal);
  return fmt::format("SIG{} ({})", name == nullptr ? std::to_string(signal) : name,
                     ::strsignal(signal));
}

std::string WhatItWrote(std::string_view messages) {
  const std::string lines = LastLines(messages);
  return lines.empty() ? "it wrote nothing" : "the last that it wrote:\n" + lines;
}

bool WriteToFile(int file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file, bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

}  // namespace minka
