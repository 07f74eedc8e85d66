// All that a program which trains with minka includes.
#pragma once

#include "minka/base/status.h"
#include "minka/cluster/cluster.h"
#include "minka/driver/inputs.h"
#include "minka/driver/oracle.h"
#include "minka/driver/parallelize.h"
#include "minka/driver/profile.h"
#include "minka/frontend/nn.h"
#include "minka/frontend/optimizer.h"
#include "minka/frontend/trace.h"
#include "minka/ir/hlo_proto.h"
#include "minka/ir/step.h"
#include "minka/models/bert.h"
#include "minka/models/gpt.h"
#include "minka/models/mlp.h"
#include "minka/models/registry.h"
#include "minka/plan/plan.h"
