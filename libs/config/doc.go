// Package config reads one struct from flags, environment, a file and defaults.
// It knows neither gRPC nor the generated code.
//
// A field takes part if it has a config tag:
//
//	type Config struct {
//		LogDirs []string      `config:"log.dirs" default:"data" help:"Folders of the replicas, one per disk."`
//		Linger  time.Duration `config:"linger" default:"5ms" help:"How long a batch waits for company."`
//	}
//
// Types are string, bool, int, int32, int64, uint64, float64, time.Duration and
// []string (separated by commas). Structs within the struct, embedded or named,
// are read as if their fields stood in their place; other fields without the
// tag are left alone.
//
// The caller's duties, in order:
//
//  1. SetDefaults, then whatever defaults depend on the process.
//  2. Load. The first of these that names a key decides: a flag (--log.dirs=a or
//     --log.dirs a), the environment (LEAT_LOG_DIRS), the file of --config, and
//     the value that was there. Load ends with the struct's own Validate.
//  3. On ErrHelp print Usage, on ErrVersion the version; every other error is a
//     wrong invocation, with one line for each thing that is wrong.
package config
