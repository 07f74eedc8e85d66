// Which meshes are searched: the shapes of a number of devices, and coarser meshes for fine ones.
//
// Meshes of many axes are planned with neighbouring axes joined: the search over every use of eight
// axes would take days, and a plan of a coarser mesh is one of the finer mesh, collective for
// collective.
//
//   x=2,y=2,z=2,w=2  joined to  x_y=4,z_w=4:  [x_y,-] there is [x+y,-] here
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "minka/cluster/cluster.h"
#include "minka/plan/plan.h"
#include "minka/planner/intra_op/intra_op.h"
#include "minka/sharding/mesh.h"

namespace minka {

// The mesh shapes of all devices: ordered factorisations without factors of 1, at most three axes,
// fewest axes first. Where all links are equal, one order of each; on several hosts those in front
// of which each axis lies within hosts or between them.
std::vector<Mesh> MeshShapes(const Cluster& cluster);
// Of so many of its devices: some of one host, or whole hosts. InvalidArgument: they are neither.
absl::StatusOr<std::vector<Mesh>> SubmeshShapes(const Cluster& cluster, int num_devices);

// A mesh as another, coarser one.
struct JoinedAxes {
  Mesh mesh;  // the coarser one
  // By its axis: the axes of the finer one that it stands for, major to minor; those of size 1
  // stand nowhere.
  std::vector<std::vector<int>> axes;
};

int NumAxesThatSplit(const Mesh& mesh);  // of a size above 1

// Every way to join neighbours until at most `max_axes` are left, fewest axes first. Where all
// links are equal, so that axes can change places: one of those that differ in the order of their
// sizes alone.
std::vector<JoinedAxes> JoinNeighbours(const Mesh& mesh, int max_axes, bool equal_links);

// What is asked of the finer mesh, in the axes of the coarser one. FailedPrecondition: pins or
// batch axis keep apart what is joined; InvalidArgument: a pin is no sharding of the finer mesh.
absl::StatusOr<SearchOptions> OnJoinedAxes(const SearchOptions& search, const Mesh& mesh,
                                           const JoinedAxes& joined);

// A stage of the coarser mesh as one of `mesh`.
StagePlan WithAxesApart(StagePlan stage, const Mesh& mesh, const JoinedAxes& joined);

}  // namespace minka
