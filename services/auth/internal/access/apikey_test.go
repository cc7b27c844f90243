package access

import (
	"crypto/sha256"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"testing"
	"time"
)

// TestAPIKeysAreComparedWithoutBranches: the loops over keys and hashes contain nothing but comparisons in constant
// time: no condition, no early end, and no look-up by the presented key.
func TestAPIKeysAreComparedWithoutBranches(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "apikey.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	loops := 0
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Name.Name != "findKey" {
			continue
		}
		ast.Inspect(f, func(n ast.Node) bool {
			loop, ok := n.(*ast.RangeStmt)
			if !ok {
				return true
			}
			loops++
			ast.Inspect(loop.Body, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.IfStmt, *ast.SwitchStmt, *ast.BranchStmt, *ast.ReturnStmt, *ast.BinaryExpr, *ast.ForStmt:
					t.Errorf("the loop has a %T, whose time can depend on the presented key", n)
				case *ast.CallExpr:
					called, _ := n.Fun.(*ast.SelectorExpr)
					if called == nil || fmt.Sprint(called.X) != "subtle" {
						t.Errorf("the loop calls something else than crypto/subtle")
					}
				}
				return true
			})
			return true
		})
	}
	if loops != 2 {
		t.Errorf("TEST NOT VALID: findKey has %d loops, want one over the keys and one over their hashes", loops)
	}
}

// timings returns the shortest duration of several calls, for each of some presented keys. The keys alternate, so that
// other processes of the machine affect all keys equally.
func timings(keys map[string][]APIKey, presented map[string]string) map[string]time.Duration {
	best, now := map[string]time.Duration{}, time.Now()
	for range 400 {
		for name, key := range presented {
			began := time.Now()
			for range 50 {
				_, _ = findKey(keys[name], key, now)
			}
			if took := time.Since(began); best[name] == 0 || took < best[name] {
				best[name] = took
			}
		}
	}
	return best
}

// TestAPIKeysTakeOneTime: the duration does not show whether a key is known, its place in the list, or how much of its
// hash is right.
func TestAPIKeysTakeOneTime(t *testing.T) {
	many := make([]APIKey, maxAPIKeys)
	for i := range many {
		many[i] = APIKey{Name: fmt.Sprint("key", i), Hashes: []Hash{sha256.Sum256(fmt.Append(nil, "key", i)), {}}}
	}
	// near returns a key whose hash differs from the hash of the presented key in all bytes from the given byte on
	near := func(from int) []APIKey {
		hash := sha256.Sum256([]byte("nobody"))
		for i := from; i < len(hash); i++ {
			hash[i] ^= 0xff
		}
		return []APIKey{{Name: "a", Hashes: slices.Repeat([]Hash{hash}, 64)}}
	}
	for name, tt := range map[string]struct {
		keys      map[string][]APIKey
		presented map[string]string
	}{
		"place": {
			map[string][]APIKey{"first": many, "last": many, "unknown": many},
			map[string]string{"first": "key0", "last": fmt.Sprint("key", maxAPIKeys-1), "unknown": "nobody"},
		},
		"right bytes": {
			map[string][]APIKey{"0": near(0), "1": near(1), "16": near(16), "31": near(31)},
			map[string]string{"0": "nobody", "1": "nobody", "16": "nobody", "31": "nobody"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			// A real difference occurs in each attempt. A comparison that ends at the first wrong byte is several times
			// faster.
			var took map[string]time.Duration
			for range 5 {
				took = timings(tt.keys, tt.presented)
				var all []time.Duration
				for _, d := range took {
					all = append(all, d)
				}
				if fastest, slowest := slices.Min(all), slices.Max(all); slowest < fastest+fastest/4 {
					t.Logf("50 calls: %v", took)
					return
				}
			}
			t.Errorf("50 calls: %v, want times within 25 %%", took)
		})
	}
}
