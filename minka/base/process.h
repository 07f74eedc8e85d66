// What watching child processes needs, whoever the child is.
#pragma once

#include <string>
#include <string_view>

namespace minka {

// "SIGKILL (Killed)".
std::string NameOfSignal(int signal);

// Of what a process wrote, the last lines; for messages about its death: "it wrote nothing", or
// "the last that it wrote:\n...".
std::string WhatItWrote(std::string_view messages);

// False: not all of it could be written.
bool WriteToFile(int file, std::string_view bytes);

}  // namespace minka
