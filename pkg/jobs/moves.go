package jobs

import "fmt"

// moves is the table of legal moves. A job that nobody has claimed has no
// lifecycle event yet: it is queued because its message lies in the queue.
var moves = map[State][]State{
	Scheduled: {Queued, Running, Cancelled, Failed},
	Queued:    {Running, Cancelled, Failed},
	// Running to Running is a claim over a lost worker, the marker of an
	// effect, or a request to cancel.
	Running:  {Running, Retrying, Succeeded, Failed, Cancelled},
	Retrying: {Running, Cancelled, Failed},
}

// CheckMove returns an error when a job may not go from one state to another.
func CheckMove(from, to State) error {
	for _, s := range moves[from] {
		if s == to {
			return nil
		}
	}
	return fmt.Errorf("job cannot go from %s to %s", from, to)
}
