package dev

// serviceKinds are the services that dev can run.
func serviceKinds() map[string]kind {
	return map[string]kind{}
}
