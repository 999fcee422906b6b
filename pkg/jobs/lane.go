package jobs

import (
	"slices"
	"strconv"
)

// MaxDepth is how deep calls of packs nest: a job that nobody called may call
// another, which may call another, four times. It is the number of lanes for
// called jobs, each a consumer in every pool, and ends cycles.
const MaxDepth = 4

// Called says how a pack called a job.
type Called struct {
	// Depth is 1 for a job called by one that nobody called.
	Depth int `json:"depth"`
	// Run and Attempt are those of the parent that made the call.
	Run     int `json:"run,omitempty"`
	Attempt int `json:"attempt,omitempty"`
	// Shared: the call had a key of its own, so that other parents may wait
	// for the job as well. It does not end with its parent.
	Shared bool `json:"shared,omitempty"`
	// Held: a parent that waits for the job keeps a session meanwhile.
	Held bool `json:"held,omitempty"`
}

// Depth is how many calls lie above the job, 0 for one that no pack called.
func (j Job) Depth() int {
	if j.Call == nil {
		return 0
	}
	return j.Call.Depth
}

// CallLanes are the lanes of called jobs, by depth from 1 on. Called jobs keep
// the priority of their parent for the record, but queue by depth: a worker
// whose parents wait lends their slots to deeper jobs only. So work that was
// begun ends before more is begun, no parent waits behind jobs of its own
// kind, and the number of waiting parents is bounded by slots times MaxDepth.
var CallLanes = func() []Priority {
	out := make([]Priority, MaxDepth)
	for i := range out {
		out[i] = Priority("call" + strconv.Itoa(i+1))
	}
	return out
}()

// Lane is where the job queues.
func (j Job) Lane() Priority {
	if d := j.Depth(); d > 0 {
		return CallLanes[min(d, MaxDepth)-1]
	}
	return j.Priority
}

// LaneDepth is the depth of the jobs in a lane.
func LaneDepth(lane Priority) int { return slices.Index(CallLanes, lane) + 1 }
