// Package openapi describes the HTTP surface: it makes the OpenAPI 3.1
// document from a table of operations and from the packs' own schemas, and
// holds the page that shows it without any help from the network.
package openapi

import (
	"encoding/json"
	"fmt"
	"net/http"
	"path"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/helmdeck/helmdeck/pkg/client"
)

// Operation describes one method of one path.
type Operation struct {
	Method, Path string
	// ID is the unique name that generated clients call it by.
	ID, Tag     string
	Summary     string
	Description string
	// Scope is what a token needs; empty: no token is needed.
	Scope  string
	Params []Param
	// Body is a value of the type of the request body, nil for none.
	// BodyType is its media type, JSON when empty.
	Body     any
	BodyType string
	// BodyOptional is set when the body may be left out.
	BodyOptional bool
	Answers      []Answer
	// Hidden leaves the operation out of the document.
	Hidden bool
}

// Param is a parameter in the query or the header.
type Param struct {
	Name, In    string
	Type        string // JSON type; "string" when empty
	Description string
}

// Answer is one way an operation succeeds.
type Answer struct {
	Status      int
	Description string
	// Body is a value of the type of the body, nil for none or for bytes.
	Body any
	// Type is the media type, JSON when empty and Body is not nil.
	Type string
}

// Document makes the OpenAPI document.
func Document(version string, ops []Operation, packs []client.Pack) ([]byte, error) {
	d := &document{registry: huma.NewMapRegistry("#/components/schemas/", schemaName)}
	api := &huma.OpenAPI{
		OpenAPI: "3.1.0",
		Info: &huma.Info{
			Title: "helmdeck", Version: version,
			Description: "Packs as jobs: submit one, follow it, fetch its artifacts. Errors have one body everywhere, see the schema Problem.",
		},
		Components: &huma.Components{
			Schemas: d.registry,
			SecuritySchemes: map[string]*huma.SecurityScheme{
				"bearer": {Type: "http", Scheme: "bearer", Description: "The token of helmdeck up, or one with the scope an operation names."},
			},
		},
	}
	for i := range ops {
		if !ops[i].Hidden {
			api.AddOperation(d.operation(&ops[i]))
		}
	}
	text, err := json.Marshal(api)
	if err != nil {
		return nil, fmt.Errorf("encode openapi: %w", err)
	}
	var doc map[string]any
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read openapi back: %w", err)
	}
	loosen(doc)
	paths, _ := doc["paths"].(map[string]any)
	for i := range packs {
		paths["/api/v1/packs/"+packs[i].Name] = packPath(&packs[i])
	}
	if text, err = json.Marshal(doc); err != nil {
		return nil, fmt.Errorf("encode openapi: %w", err)
	}
	return text, nil
}

type document struct{ registry huma.Registry }

// schemaName tells types of the same name in different packages apart:
// client.Pack is Pack, jobs.Job is Job, jobs.Request is JobRequest.
func schemaName(t reflect.Type, hint string) string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Name() == "" {
		return hint
	}
	pkg := strings.TrimSuffix(path.Base(t.PkgPath()), "s")
	if pkg == "" || pkg == "." || pkg == "client" {
		return t.Name()
	}
	pkg = strings.ToUpper(pkg[:1]) + pkg[1:]
	if strings.HasPrefix(t.Name(), pkg) {
		return t.Name()
	}
	return pkg + t.Name()
}

func (d *document) schema(v any) *huma.Schema {
	t := reflect.TypeOf(v)
	return d.registry.Schema(t, true, t.Name())
}

func (d *document) operation(op *Operation) *huma.Operation {
	out := &huma.Operation{
		Method: op.Method, Path: strings.ReplaceAll(op.Path, "...}", "}"),
		OperationID: op.ID, Tags: []string{op.Tag}, Summary: op.Summary, Description: op.Description,
		Responses: map[string]*huma.Response{}, Security: []map[string][]string{},
	}
	if op.Scope != "" {
		out.Security = append(out.Security, map[string][]string{"bearer": {op.Scope}})
	}
	for part := range strings.SplitSeq(out.Path, "/") {
		if name, ok := strings.CutPrefix(part, "{"); ok {
			out.Parameters = append(out.Parameters, &huma.Param{
				Name: strings.TrimSuffix(name, "}"), In: "path", Required: true, Schema: &huma.Schema{Type: "string"},
			})
		}
	}
	for _, p := range op.Params {
		kind := p.Type
		if kind == "" {
			kind = "string"
		}
		out.Parameters = append(out.Parameters, &huma.Param{
			Name: p.Name, In: p.In, Description: p.Description, Schema: &huma.Schema{Type: kind},
		})
	}
	if op.Body != nil {
		out.RequestBody = &huma.RequestBody{
			Required: !op.BodyOptional,
			Content:  map[string]*huma.MediaType{mediaType(op.BodyType): {Schema: d.schema(op.Body)}},
		}
	}
	for _, a := range op.Answers {
		r := &huma.Response{Description: a.Description}
		switch {
		case a.Body != nil:
			r.Content = map[string]*huma.MediaType{mediaType(a.Type): {Schema: d.schema(a.Body)}}
		case a.Type != "":
			r.Content = map[string]*huma.MediaType{a.Type: {}}
		}
		out.Responses[strconv.Itoa(a.Status)] = r
	}
	if strings.HasPrefix(op.Path, "/api/") {
		out.Responses["default"] = &huma.Response{
			Description: "Any failure; the status follows from the code in the body.",
			Content:     map[string]*huma.MediaType{"application/json": {Schema: d.schema(client.Problem{})}},
		}
	}
	return out
}

func mediaType(s string) string {
	if s == "" {
		return "application/json"
	}
	return s
}

// loosen undoes what holds for servers that refuse what they do not know:
// readers of our answers must not, or no key could ever be added. Lists are
// never null here.
func loosen(v any) {
	switch v := v.(type) {
	case map[string]any:
		if v["additionalProperties"] == false {
			delete(v, "additionalProperties")
		}
		if kinds, ok := v["type"].([]any); ok && len(kinds) == 2 && kinds[0] == "array" && kinds[1] == "null" {
			v["type"] = "array"
		}
		for _, child := range v {
			loosen(child)
		}
	case []any:
		for _, child := range v {
			loosen(child)
		}
	}
}

type object = map[string]any

// packPath is the path of one pack with its own schemas.
func packPath(p *client.Pack) object {
	input := object{"schema": p.InputSchema}
	if len(p.Examples) > 0 {
		examples := object{}
		for _, e := range p.Examples {
			examples[exampleName(e.Title)] = object{"summary": e.Title, "value": e.Input}
		}
		input["examples"] = examples
	}
	result := object{"allOf": []any{
		object{"$ref": "#/components/schemas/Result"},
		object{"type": "object", "properties": object{"output": p.OutputSchema}},
	}}
	codes := make([]string, len(p.Errors))
	for i, c := range p.Errors {
		codes[i] = string(c)
	}
	slices.Sort(codes)
	description := p.Description + "\n\nErrors: " + strings.Join(codes, ", ") + "."
	if !p.Available {
		description += "\n\nNot available here: " + p.Reason
	}
	return object{"post": object{
		"operationId": "run_" + strings.ReplaceAll(p.Name, ".", "_"),
		"tags":        []string{"pack " + strings.Split(p.Name, ".")[0]},
		"summary":     p.Summary, "description": description,
		"security":    []any{object{"bearer": []string{"packs:run"}}},
		"requestBody": object{"required": false, "content": object{"application/json": input}},
		"responses": object{
			strconv.Itoa(http.StatusOK): object{
				"description": "The job succeeded.", "content": object{"application/json": object{"schema": result}},
			},
			strconv.Itoa(http.StatusAccepted): object{
				"description": "The wait ended first; the job goes on at Location.",
				"content":     object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Job"}}},
			},
			"default": object{
				"description": "Any failure.",
				"content":     object{"application/json": object{"schema": object{"$ref": "#/components/schemas/Problem"}}},
			},
		},
	}}
}

// exampleName is title as a key of the document.
func exampleName(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		}
		return '_'
	}, title)
}
