package config

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
)

// Options says where Load looks.
type Options struct {
	// Args are the arguments after the program's name.
	Args []string
	// Environ is as os.Environ gives it.
	Environ []string
	// EnvPrefix is that of the variables, for example "LEAT_".
	EnvPrefix string
}

// maxFileBytes bounds the file of --config.
const maxFileBytes = 1 << 20

// Load reads flags, environment and the file of --config into cfg, which holds
// the defaults already (SetDefaults), then calls its Validate, if it has one. It
// returns all errors joined; ErrHelp or ErrVersion alone where a flag asks for
// that. An empty variable counts as absent, and so do variables with the prefix
// that name no key: other programs share the prefix.
func Load(cfg any, opts Options) error {
	fs := fields(cfg)
	flags, err := parseFlags(opts.Args, fs)
	if errors.Is(err, ErrHelp) || errors.Is(err, ErrVersion) {
		return err
	}
	errs := []error{err}
	env := make(map[string]string, len(opts.Environ))
	for _, kv := range opts.Environ {
		if name, value, ok := strings.Cut(kv, "="); ok && value != "" {
			env[name] = value
		}
	}
	file := env[EnvName(opts.EnvPrefix, "config")]
	if flags.file != "" {
		file = flags.file
	}
	// From the weakest source to the strongest.
	if file != "" {
		errs = append(errs, loadFile(fs, file))
	}
	for _, f := range fs {
		name := EnvName(opts.EnvPrefix, f.Name)
		if value, ok := env[name]; ok {
			errs = append(errs, setIn(fs, f.Name, value, name))
		}
	}
	for _, a := range flags.set {
		errs = append(errs, setIn(fs, a.Key, a.Value, sourceFlag))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	if v, ok := cfg.(interface{ Validate() error }); ok {
		return v.Validate()
	}
	return nil
}

// flagSet is what the arguments say.
type flagSet struct {
	set  []KeyValue
	file string
}

// parseFlags splits arguments into keys and values. A bool needs no value.
func parseFlags(args []string, fs []field) (flagSet, error) {
	var out flagSet
	var errs []error
	for i := 0; i < len(args); i++ {
		arg := args[i]
		switch arg {
		case "--help", "-h", "-help":
			return out, ErrHelp
		case "--version":
			return out, ErrVersion
		}
		key, ok := strings.CutPrefix(arg, "--")
		if !ok || key == "" {
			errs = append(errs, &SyntaxError{Source: "argument", Reason: fmt.Sprintf("%q is no flag; settings are given as --key=value", arg)})
			continue
		}
		key, value, hasValue := strings.Cut(key, "=")
		if !hasValue {
			typ := flagType(key, fs)
			next := i+1 < len(args) && (typ != "bool" || args[i+1] == "true" || args[i+1] == "false")
			switch {
			case typ == "":
				// Unknown: what follows, if it is no flag, is most likely its value.
				next = next && !strings.HasPrefix(args[i+1], "-")
			case next:
			case typ == "bool":
				value = "true"
			default:
				errs = append(errs, &SyntaxError{Source: sourceFlag, Reason: fmt.Sprintf("--%s needs a value: give --%s=value", key, key)})
				continue
			}
			if next {
				i++
				value = args[i]
			}
		}
		if key == "config" {
			out.file = value
			continue
		}
		out.set = append(out.set, KeyValue{Key: key, Value: value})
	}
	return out, errors.Join(errs...)
}

// flagType is the type of the key a flag names; "" for an unknown one.
func flagType(key string, fs []field) string {
	if key == "config" {
		return "string"
	}
	for _, f := range fs {
		if f.Name == key {
			return f.Type
		}
	}
	return ""
}

// loadFile reads lines of key=value; empty lines and those that begin with # are
// passed over.
func loadFile(fs []field, path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("read the file of --config: %w", err)
	}
	if info.Size() > maxFileBytes {
		return fmt.Errorf("read the file of --config: %s has %d bytes, more than the %d that are allowed", path, info.Size(), maxFileBytes)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the file of --config: %w", err)
	}
	var errs []error
	seen := map[string]int{}
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, maxFileBytes+1)
	for n := 1; sc.Scan(); n++ {
		line := strings.TrimSpace(sc.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		source := fmt.Sprintf("%s:%d", path, n)
		key, value, ok := strings.Cut(line, "=")
		key = strings.TrimSpace(key)
		switch {
		case !ok || key == "":
			errs = append(errs, &SyntaxError{Source: source, Reason: fmt.Sprintf("%q is not of the form key=value", line)})
		case seen[key] > 0:
			errs = append(errs, &SyntaxError{Source: source, Reason: fmt.Sprintf("%s is given twice, first in line %d: keep one", key, seen[key])})
		default:
			seen[key] = n
			errs = append(errs, setIn(fs, key, value, source))
		}
	}
	return errors.Join(append(errs, sc.Err())...)
}
