package jobs

import (
	"encoding/json"
	"fmt"

	"github.com/helmdeck/helmdeck/pkg/records"
)

// The forms of the records that lie on the bus.
var (
	jobForm        = records.FormOf(Job{})
	submissionForm = records.FormOf(Submission{})
	// queueForm is of a submission and the job in it together.
	queueForm = records.FormOf(Job{}, Submission{})

	jobPlan        = records.PlanOf[Job]()
	submissionPlan = records.PlanOf[Submission]()
)

// EncodeJob makes the JSON form of a job with the members that this program
// does not know, and the schema to be written beside it.
func EncodeJob(j Job) (data json.RawMessage, schema string, err error) {
	if data, err = jobPlan.Marshal(&j); err != nil {
		return nil, "", fmt.Errorf("encode job %s: %w", j.ID, err)
	}
	if data, err = records.Join(data, j.Unknown); err != nil {
		return nil, "", fmt.Errorf("encode job %s: %w", j.ID, err)
	}
	return data, jobForm.Schema(len(j.Unknown) > 0), nil
}

// DecodeJob reads a job written beside schema, empty when there was none.
// records.ErrNewer.
func DecodeJob(data []byte, schema string) (Job, error) {
	var j Job
	has, err := jobForm.Check(schema)
	if err != nil {
		return j, fmt.Errorf("decode job: %w", err)
	}
	if err := jobPlan.Unmarshal(data, &j); err != nil {
		return j, fmt.Errorf("decode job: %w", err)
	}
	if has {
		j.Unknown, err = jobForm.Split(data)
	}
	return j, err
}

// ReadJob reads a job for readers, who change nothing: what this program does
// not know of it is left out.
func ReadJob(data []byte) (Job, error) {
	var j Job
	if err := jobPlan.Unmarshal(data, &j); err != nil {
		return Job{}, fmt.Errorf("decode job: %w", err)
	}
	return j, nil
}

// EncodeSubmission is EncodeJob for what travels through the queue.
func EncodeSubmission(s Submission) (data json.RawMessage, schema string, err error) {
	if has := len(s.Unknown) > 0 || len(s.Job.Unknown) > 0; !has {
		if data, err = submissionPlan.Marshal(&s); err != nil {
			return nil, "", fmt.Errorf("encode job %s: %w", s.Job.ID, err)
		}
		return data, queueForm.Schema(false), nil
	}
	if data, err = joined(s); err != nil {
		return nil, "", fmt.Errorf("encode job %s: %w", s.Job.ID, err)
	}
	return data, queueForm.Schema(true), nil
}

// joined is a submission as an object whose job is encoded by itself.
func joined(s Submission) (json.RawMessage, error) {
	job, _, err := EncodeJob(s.Job)
	if err != nil {
		return nil, err
	}
	data, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, err
	}
	members["job"] = job
	if data, err = json.Marshal(members); err != nil {
		return nil, err
	}
	return records.Join(data, s.Unknown)
}

// DecodeSubmission is DecodeJob for what travels through the queue.
func DecodeSubmission(data []byte, schema string) (Submission, error) {
	var s Submission
	has, err := queueForm.Check(schema)
	if err != nil {
		return s, fmt.Errorf("decode submission: %w", err)
	}
	if err := submissionPlan.Unmarshal(data, &s); err != nil {
		return s, fmt.Errorf("decode submission: %w", err)
	}
	if !has {
		return s, nil
	}
	var raw struct {
		Job json.RawMessage `json:"job"`
	}
	if err := json.Unmarshal(data, &raw); err != nil {
		return s, fmt.Errorf("decode submission: %w", err)
	}
	if s.Unknown, err = submissionForm.Split(data); err == nil && len(raw.Job) > 0 {
		s.Job.Unknown, err = jobForm.Split(raw.Job)
	}
	return s, err
}

// EncodeDead makes the JSON form of a dead letter, with what this program does
// not know of the job in it.
func EncodeDead(d DeadLetter) ([]byte, error) {
	data, err := json.Marshal(d)
	if err != nil || len(d.Submission.Unknown) == 0 && len(d.Submission.Job.Unknown) == 0 {
		return data, err
	}
	var members map[string]json.RawMessage
	if err := json.Unmarshal(data, &members); err != nil {
		return nil, err
	}
	if members["submission"], err = joined(d.Submission); err != nil {
		return nil, err
	}
	return json.Marshal(members)
}
