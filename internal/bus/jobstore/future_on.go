//go:build future

package jobstore

import (
	"encoding/json"

	"github.com/helmdeck/helmdeck/pkg/jobs"
	"github.com/helmdeck/helmdeck/pkg/records"
)

// future adds members to a record that the present version does not know, as a
// later one may. "future_submitted" stays as the first writer set it,
// "future_state" is of the last writer that knows it.
func future(j jobs.Job) jobs.Job {
	members := map[string]any{}
	if len(j.Unknown) > 0 {
		if err := json.Unmarshal(j.Unknown, &members); err != nil {
			panic(err) // of Split, or of this function
		}
	}
	if _, ok := members["future_submitted"]; !ok {
		members["future_submitted"] = map[string]any{"by": "future", "runs": j.Runs}
	}
	members["future_state"] = j.State
	b, err := json.Marshal(members)
	if err != nil {
		panic(err) // of strings and numbers
	}
	j.Unknown = records.Unknown(b)
	return j
}
