package artifacts

// Store is the artifact store every surface and every run uses.
type Store struct{}
