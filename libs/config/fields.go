package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"time"
)

// Key describes one setting.
type Key struct {
	// Name as in flags and files, for example "log.dirs".
	Name string
	// Type is one of string, bool, int, float, duration and list.
	Type string
	// Default in the form in which it would be given; "" may mean none.
	Default string
	// Help is one sentence or two.
	Help string
}

// field is a setting and the place of its value.
type field struct {
	Key
	value reflect.Value
}

var durationType = reflect.TypeFor[time.Duration]()

// fields lists the settings of a pointer to a struct, in the order of the
// struct. It panics on a struct that breaks the rules of doc.go, which is a
// mistake of the program and found by any call.
func fields(cfg any) []field {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.IsNil() || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("config: %T is no pointer to a struct", cfg))
	}
	return appendFields(nil, v.Elem())
}

func appendFields(out []field, v reflect.Value) []field {
	t := v.Type()
	for i := range t.NumField() {
		sf := t.Field(i)
		if !sf.IsExported() {
			continue
		}
		name, tagged := sf.Tag.Lookup("config")
		if !tagged {
			if sf.Type.Kind() == reflect.Struct {
				out = appendFields(out, v.Field(i))
			}
			continue
		}
		typ := typeName(sf.Type)
		if typ == "" || name == "" {
			panic(fmt.Sprintf("config: %s.%s has a config tag %q and the type %s, which cannot be read", t, sf.Name, name, sf.Type))
		}
		f := field{Key: Key{Name: name, Type: typ, Default: sf.Tag.Get("default"), Help: sf.Tag.Get("help")}, value: v.Field(i)}
		if _, ok := sf.Tag.Lookup("default"); !ok && !f.value.IsZero() {
			f.Default = f.format()
		}
		out = append(out, f)
	}
	return out
}

// typeName gives the published name of a type; "" for one that is not supported.
func typeName(t reflect.Type) string {
	if t == durationType {
		return "duration"
	}
	switch t.Kind() {
	case reflect.String:
		return "string"
	case reflect.Bool:
		return "bool"
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return "int"
	case reflect.Float64:
		return "float"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.String {
			return "list"
		}
	}
	return ""
}

// set parses a value into the field.
func (f *field) set(s string) error {
	v := f.value
	s = strings.TrimSpace(s)
	switch f.Type {
	case "string":
		v.SetString(s)
	case "bool":
		b, err := strconv.ParseBool(s)
		if err != nil {
			return fmt.Errorf("give true or false")
		}
		v.SetBool(b)
	case "duration":
		d, err := time.ParseDuration(s)
		if err != nil {
			return fmt.Errorf("give a duration with its unit, such as 500ms, 10s or 2m")
		}
		v.SetInt(int64(d))
	case "int":
		return setInt(v, s)
	case "float":
		x, err := strconv.ParseFloat(s, 64)
		if err != nil || x != x {
			return fmt.Errorf("give a number")
		}
		v.SetFloat(x)
	case "list":
		v.Set(reflect.ValueOf(splitList(s)).Convert(v.Type()))
	}
	return nil
}

func setInt(v reflect.Value, s string) error {
	bits := v.Type().Bits()
	if v.Kind() == reflect.Uint64 {
		n, err := strconv.ParseUint(s, 10, bits)
		if err != nil {
			return fmt.Errorf("give a whole number from 0")
		}
		v.SetUint(n)
		return nil
	}
	n, err := strconv.ParseInt(s, 10, bits)
	if err != nil {
		return fmt.Errorf("give a whole number of at most %d bits", bits)
	}
	v.SetInt(n)
	return nil
}

// splitList splits at commas and drops what is empty.
func splitList(s string) []string {
	out := []string{}
	for part := range strings.SplitSeq(s, ",") {
		if part = strings.TrimSpace(part); part != "" {
			out = append(out, part)
		}
	}
	return out
}

// format writes the value in the form in which it can be given.
func (f *field) format() string {
	switch v := f.value.Interface().(type) {
	case time.Duration:
		return v.String()
	case []string:
		return strings.Join(v, ",")
	default:
		return fmt.Sprint(v)
	}
}
