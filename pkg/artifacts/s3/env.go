package s3

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

// The variables of the configuration. All but EnvRegion and EnvUseSSL have a
// form with _FILE that names a file to read the value from.
const (
	EnvEndpoint       = "HELMDECK_S3_ENDPOINT"
	EnvBucket         = "HELMDECK_S3_BUCKET"
	EnvAccessKey      = "HELMDECK_S3_ACCESS_KEY"
	EnvSecretKey      = "HELMDECK_S3_SECRET_KEY"
	EnvRegion         = "HELMDECK_S3_REGION"
	EnvUseSSL         = "HELMDECK_S3_USE_SSL"
	EnvPublicEndpoint = "HELMDECK_S3_PUBLIC_ENDPOINT"
)

// maxValue bounds a file with a value; more is certainly another file.
const maxValue = 64 << 10

// FromEnv reads the configuration, all but Installation, from variables that
// getenv (os.Getenv) looks up. Without an endpoint there is none: nil. The
// error names every variable that is missing or wrong.
func FromEnv(getenv func(string) string) (*Config, error) {
	var c Config
	var faults []error
	for _, v := range []struct {
		name string
		into *string
	}{
		{EnvEndpoint, &c.Endpoint}, {EnvBucket, &c.Bucket}, {EnvAccessKey, &c.AccessKey},
		{EnvSecretKey, &c.SecretKey}, {EnvPublicEndpoint, &c.PublicEndpoint},
	} {
		value, err := valueOf(getenv, v.name)
		if err != nil {
			faults = append(faults, err)
		}
		*v.into = value
	}
	if c.Endpoint == "" && len(faults) == 0 {
		return nil, nil
	}
	c.Region = strings.TrimSpace(getenv(EnvRegion))
	c.UseSSL = getenv(EnvUseSSL) == "true"
	if len(faults) == 0 {
		faults = append(faults, c.Validate())
	}
	return &c, errors.Join(faults...)
}

// valueOf is a variable, or the trimmed content of the file that its _FILE
// form names.
func valueOf(getenv func(string) string, name string) (string, error) {
	if v := strings.TrimSpace(getenv(name)); v != "" {
		return v, nil
	}
	path := getenv(name + "_FILE")
	if path == "" {
		return "", nil
	}
	info, err := os.Stat(path)
	if err == nil && info.Size() > maxValue {
		err = fmt.Errorf("%s has %d bytes, more than any value", path, info.Size())
	}
	var b []byte
	if err == nil {
		b, err = os.ReadFile(path)
	}
	if err != nil {
		return "", fmt.Errorf("%s_FILE: %w", name, err)
	}
	return strings.TrimSpace(string(b)), nil
}
