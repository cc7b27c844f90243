package command

import (
	"crypto/hmac"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/stunner-gateway/stunner/services/api/credential"
)

type credFlags struct {
	user, caveats, secret, secretFile, password, passwordFile string
	ttl                                                       time.Duration
}

func newCred(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:   "cred",
		Short: "Make and check ephemeral TURN credentials",
		Long: `Make and check ephemeral TURN credentials (draft-uberti-behave-turn-rest-00), without a gateway:

  user name  EXPIRY:USER or EXPIRY:USER:CAVEATS, where EXPIRY is in seconds since 1970
  password   base64(HMAC-SHA1(shared secret, user name))

Gateways with static credentials accept their fixed pair only.`,
	}
	c.AddCommand(newCredMint(g), newCredDecode(g), newCredVerify(g))
	return c
}

func newCredMint(g *globals) *cobra.Command {
	var f credFlags
	c := &cobra.Command{
		Use:     "mint",
		Short:   "Make a credential with the shared secret of a gateway",
		Example: "  stunnerctl cred mint --user ada --secret-file key --show-secrets",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			secret, err := f.sharedSecret(g.In)
			if err != nil {
				return err
			}
			var caveats credential.Caveats
			if f.caveats != "" {
				if caveats, err = credential.ParseCaveats(f.caveats); err != nil {
					return fmt.Errorf("read --caveats: %w: it is a text such as ~1~Rmedia_janus~A2, see docs/reference/caveats.md", err)
				}
			}
			made, err := credential.Authority{SharedSecret: secret}.MintWith(caveats, f.user, f.ttl, time.Now())
			if err != nil {
				return err
			}
			if !g.showSecrets {
				fmt.Fprintln(g.ErrOut, "The password is masked: use --show-secrets.")
			}
			return g.printCred(credReport{
				Username: made.Username, User: f.user, Expires: &made.Expires, Caveats: shown(caveats),
				Password: g.masked(made.Password),
			})
		},
	}
	f.secretFlags(c)
	c.Flags().StringVar(&f.user, "user", "", "user id in the user name")
	c.Flags().StringVar(&f.caveats, "caveats", "", "limits of the credential, such as ~1~Rmedia_janus~A2")
	c.Flags().DurationVar(&f.ttl, "ttl", time.Hour, "lifetime of the credential")
	return c
}

func newCredDecode(g *globals) *cobra.Command {
	c := &cobra.Command{
		Use:     "decode USERNAME",
		Short:   "Show user id and expiry of an ephemeral user name; exit code 1 if it has expired",
		Example: `  stunnerctl cred decode 1924992000:ada`,
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			report, err := decode(args[0], time.Now())
			if err != nil {
				return err
			}
			return report.end(g.printCred(report))
		},
	}
	return c
}

func newCredVerify(g *globals) *cobra.Command {
	var f credFlags
	c := &cobra.Command{
		Use:     "verify USERNAME",
		Short:   "Check user name and password against the shared secret of a gateway; exit code 1 if they are invalid",
		Example: "  stunnerctl cred verify 1924992000:ada --secret-file key --password-file password",
		Args:    cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if f.passwordFile == "-" && f.secretFile == "-" {
				return usageError{
					errors.New("--password-file and --secret-file: only one of them can be the standard input"),
				}
			}
			secret, err := f.sharedSecret(g.In)
			if err != nil {
				return err
			}
			password := credential.Secret(f.password)
			switch {
			case f.passwordFile != "":
				if password, err = readSecret(f.passwordFile, g.In); err != nil {
					return fmt.Errorf("--password-file: %w", err)
				}
			case password == "":
				return usageError{errors.New("no password: use --password-file")}
			}
			report := verify(args[0], password, secret, time.Now())
			return report.end(g.printCred(report))
		},
	}
	f.secretFlags(c)
	c.Flags().StringVar(&f.password, "password", "", "password; visible in the list of processes, see --password-file")
	c.Flags().StringVar(&f.passwordFile, "password-file", "", `file with the password; "-" is the standard input`)
	return c
}

func (f *credFlags) secretFlags(c *cobra.Command) {
	c.Flags().StringVar(&f.secret, "secret", "", "shared secret; visible in the list of processes, see --secret-file")
	c.Flags().StringVar(&f.secretFile, "secret-file", "", `file with the shared secret; "-" is the standard input`)
}

func (f *credFlags) sharedSecret(in io.Reader) (credential.Secret, error) {
	switch {
	case f.secretFile != "":
		secret, err := readSecret(f.secretFile, in)
		if err != nil {
			return "", fmt.Errorf("--secret-file: %w", err)
		}
		return secret, nil
	case f.secret != "":
		return credential.Secret(f.secret), nil
	}
	return "", usageError{errors.New("no shared secret: use --secret-file")}
}

func (g *globals) masked(s credential.Secret) string {
	if g.showSecrets {
		return string(s)
	}
	return s.String()
}

// credReport is the output of the commands.
type credReport struct {
	Username string     `json:"username"`
	User     string     `json:"user"`
	Expires  *time.Time `json:"expires,omitempty"`
	// Caveats are nil if the user name has none.
	Caveats  *credential.Caveats `json:"caveats,omitempty"`
	Password string              `json:"password,omitempty"`
	// Valid is nil if nothing was checked, and Problem is the reason if it is false.
	Valid   *bool  `json:"valid,omitempty"`
	Problem string `json:"problem,omitempty"`
}

// end returns the error that the command returns.
func (r credReport) end(err error) error {
	if err == nil && r.Valid != nil && !*r.Valid {
		return errChecksFailed
	}
	return err
}

// judge sets Valid and Problem.
func (r *credReport) judge(problem string) {
	valid := problem == ""
	r.Valid, r.Problem = &valid, problem
}

// decode splits an ephemeral user name into expiry, caveats and user id.
func decode(username string, now time.Time) (credReport, error) {
	name, err := credential.ParseUsername(username)
	if errors.Is(err, credential.ErrUnknownUser) {
		return credReport{}, errors.New(
			"the user name contains no expiry: it is not EXPIRY:USER, so it is the user name of static credentials or wrong",
		)
	}
	r := credReport{Username: username, User: name.UserID, Expires: &name.Expires}
	if err != nil {
		r.judge(err.Error() + ": a gateway refuses the credential")
		return r, nil
	}
	r.Caveats = shown(name.Caveats)
	r.judge(lifetime(name, now))
	return r, nil
}

// shown returns the caveats, or nil if there is none.
func shown(c credential.Caveats) *credential.Caveats {
	if c.IsZero() {
		return nil
	}
	return &c
}

// lifetime returns the problem of a user name that has expired or is not valid yet, or "".
func lifetime(name credential.Username, now time.Time) string {
	if now.After(name.Expires) {
		return fmt.Sprintf("expired %s ago", now.Sub(name.Expires).Round(time.Second))
	}
	if begins := time.Unix(name.Caveats.NotBefore, 0); now.Before(begins) {
		return fmt.Sprintf("not valid for another %s", begins.Sub(now).Round(time.Second))
	}
	return ""
}

// verify checks a credential as a gateway with the shared secret does.
func verify(username string, password, secret credential.Secret, now time.Time) credReport {
	r, err := decode(username, now)
	if err != nil {
		r.Username = username
		r.judge(err.Error())
		return r
	}
	authority := credential.Authority{SharedSecret: secret}
	v, err := authority.Verify(username, now, 0)
	switch {
	case errors.Is(err, credential.ErrUnknownUser):
		if r.Problem == "" {
			r.judge(err.Error())
		}
	case !hmac.Equal(v.Key, credential.Key(username, authority.Realm, password)):
		r.judge("the password does not belong to this user name and shared secret")
	}
	return r
}

// printCred prints a report, with times in UTC.
func (g *globals) printCred(r credReport) error {
	p := g.printer()
	if !p.IsTable() {
		return p.Value(r)
	}
	var text strings.Builder
	w := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	line := func(name, value string) {
		if value != "" {
			fmt.Fprintf(w, "%s\t%s\n", name, value)
		}
	}
	line("username", r.Username)
	line("user", r.User)
	if r.Expires != nil {
		line("expires", r.Expires.UTC().Format(time.RFC3339))
	}
	if r.Caveats != nil {
		line("caveats", r.Caveats.String())
	}
	line("password", r.Password)
	if r.Valid != nil {
		line("valid", fmt.Sprint(*r.Valid))
	}
	line("problem", r.Problem)
	if err := w.Flush(); err != nil {
		return err
	}
	return p.Text(text.String())
}
