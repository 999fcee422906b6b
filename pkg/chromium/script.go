package chromium

import (
	"encoding/json"
	"fmt"

	"github.com/chromedp/cdproto/runtime"
)

// ScriptError is an exception thrown by an evaluated expression.
type ScriptError struct{ Text string }

// Error returns what the page threw.
func (e *ScriptError) Error() string { return "script failed: " + e.Text }

func exceptionText(e *runtime.ExceptionDetails) string {
	if e.Exception != nil && e.Exception.Description != "" {
		return e.Exception.Description
	}
	return e.Text
}

func decodeValue(o *runtime.RemoteObject, v any) error {
	if o == nil || len(o.Value) == 0 {
		return fmt.Errorf("the script returned no value")
	}
	if err := json.Unmarshal(o.Value, v); err != nil {
		return fmt.Errorf("decode value of script: %w", err)
	}
	return nil
}
