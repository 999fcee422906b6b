package catalog_test

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/helmdeck/helmdeck/pkg/packs"
	"github.com/helmdeck/helmdeck/pkg/packs/catalog"
)

// TestAll holds every pack of the table to the rules of the house.
func TestAll(t *testing.T) {
	t.Parallel()
	c := packs.NewCatalog(catalog.All(catalog.Options{TestPacks: true})...)
	for _, name := range []string{"http.fetch", "artifact.put", "artifact.get", "artifact.list", "test.echo"} {
		if _, err := c.Get(name, ""); err != nil {
			t.Error(err)
		}
	}
	for _, p := range c.ListAll() {
		info := p.Info()
		if hidden := strings.HasPrefix(info.Name, "test."); hidden != info.Hidden {
			t.Errorf("%s: hidden is %v", info.Name, info.Hidden)
		}
		if info.Hidden {
			continue
		}
		if len(info.Examples) == 0 {
			t.Errorf("%s has no example", info.Name)
		}
		var schema struct {
			Properties map[string]struct{ Description string }
		}
		if err := json.Unmarshal(info.Input, &schema); err != nil {
			t.Fatal(err)
		}
		for key, p := range schema.Properties {
			if p.Description == "" {
				t.Errorf("%s: input %s has no description", info.Name, key)
			}
		}
	}
	for _, p := range catalog.All(catalog.Options{}) {
		if p.Info().Hidden {
			t.Errorf("%s is offered without being asked for", p.Info().Name)
		}
	}
}
