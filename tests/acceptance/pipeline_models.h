// The models of the pipeline rows, with Alpa's sizes where one core can compute them.
#pragma once

#include <vector>

#include "minka/driver/parallelize.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "tests/acceptance/dense_layers.h"

namespace minka {

// A table of 256 rows looked up at the bottom and multiplied with at the top; the loss is a sum.
Model TiedTable();

// The new weights are the gradients: what is compared is the step without its update.
Optimizer GivesGradients();

// Two stages, each on a mesh of so many devices.
Pipeline TwoStages(int num_micro_batches, std::vector<int> submeshes = {2, 2});

}  // namespace minka
