// The same program in double precision, as the exact reference that runs are compared with.
#pragma once

#include "minka/ir/module.h"

namespace minka {

// Every float becomes f64 and every complex number c128: parameters (the caller converts their
// data), constants, results, reducers, loop bodies. Conversions between floats and reduce-precision
// become nothing.
//
// Values born from integer bit patterns (results of bitcast-convert, custom calls and opcodes that
// are not known) keep their type through data movement and are converted where the first other
// operation reads them. Bitcast-convert, custom calls and unknown opcodes get their operands
// rounded back to the type they had.
Module WidenFloats(const Module& module);

// The type that WidenFloats gives parameters and results of the type.
ElementType WidenedType(ElementType type);

}  // namespace minka
