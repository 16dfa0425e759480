// Package output prints what commands found out: JSON with stable names in
// snake_case, or aligned tables with readable sizes for people.
//
// The types in json.go are the documented shapes; a field that is published
// keeps its name and meaning.
package output
